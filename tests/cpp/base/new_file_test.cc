#include "thresher/base/new_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace thresher {
namespace {

namespace fs = std::filesystem;

class NewFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "thresher-new-file-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string Content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static int Put(const std::string& path, const std::string& text, bool replace = true) {
    NewFile file(path);
    file.Write(text.data(), text.size());
    return file.Commit(replace);
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename());
    return names;
  }

  fs::path folder_;
};

TEST_F(NewFileTest, TakesItsPlaceOnlyWhenItIsWhole) {
  ASSERT_EQ(Put(Path("a"), "old"), 0);
  {
    NewFile file(Path("a"));
    file.Write("new", 3);
    EXPECT_EQ(file.size(), 3u);
    EXPECT_EQ(Content(Path("a")), "old");
  }
  EXPECT_EQ(Content(Path("a")), "old");
  EXPECT_EQ(Names(), std::vector<std::string>{"a"});
  EXPECT_EQ(Put(Path("a"), "new"), 0);
  EXPECT_EQ(Content(Path("a")), "new");
  EXPECT_EQ(Names(), std::vector<std::string>{"a"});
}

TEST_F(NewFileTest, ReplacesNothingUnlessAsked) {
  ASSERT_EQ(Put(Path("a"), "old", false), 0);
  EXPECT_EQ(Put(Path("a"), "new", false), EEXIST);
  EXPECT_EQ(Content(Path("a")), "old");
  EXPECT_EQ(Names(), std::vector<std::string>{"a"});
}

TEST_F(NewFileTest, FollowsLinks) {
  fs::create_directory(folder_ / "far");
  fs::create_symlink("far/target", folder_ / "link");  // to nowhere yet
  fs::create_symlink("link", folder_ / "second");
  for (const std::string text : {"one", "two"}) {
    ASSERT_EQ(Put(Path("second"), text), 0);
    EXPECT_EQ(Content(Path("far/target")), text);
    EXPECT_TRUE(fs::is_symlink(folder_ / "link") && fs::is_symlink(folder_ / "second"));
  }
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_EQ(Put(Path("loop"), "x"), ELOOP);
}

TEST_F(NewFileTest, TakesTheErrorOfTheSystem) {
  EXPECT_EQ(Put(Path("none/a"), "x"), ENOENT);
  EXPECT_EQ(Put(folder_.string(), "x"), EISDIR);
  EXPECT_EQ(Put("/dev/null", "x"), EINVAL);
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(Put(Path("pipe"), "x"), EINVAL);
}

TEST_F(NewFileTest, AFullDiskLeavesTheOldFile) {
  ASSERT_EQ(Put(Path("a"), "old"), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit = {1000, 1000};
    std::signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(99);
    _exit(Put(Path("a"), std::string(2000, 'x')));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == EFBIG) << status;
  EXPECT_EQ(Content(Path("a")), "old");
  EXPECT_EQ(Names(), std::vector<std::string>{"a"});
}

TEST_F(NewFileTest, TheNextWriterRemovesWhatAKilledOneLeft) {
  for (int i = 0; i < 3; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      NewFile file(Path("a"));
      file.Write("half", 4);
      kill(getpid(), SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(Names().size(), 1u) << "each removes what the one before has left";
  }
  NewFile living(Path("a"));
  EXPECT_EQ(Put(Path("a"), "new"), 0);
  EXPECT_EQ(Names().size(), 2u) << "what another writer is at work on stays";
  living.Write("newer", 5);
  EXPECT_EQ(living.Commit(true), 0);
  EXPECT_EQ(Content(Path("a")), "newer");
  EXPECT_EQ(Names(), std::vector<std::string>{"a"});
}

}  // namespace
}  // namespace thresher
