#include "thresher/run/recording.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "fuzz/recording_files.h"
#include "run/test_graphs.h"
#include "thresher/run/paged_decoder.h"

namespace thresher {
namespace {

constexpr const char* kWhole =
    "thresher recording 1\n"
    "model a small one\n"
    "precision fp32\n"
    "step_tokens 16\n"
    "exact 1\n"
    "layout @layout\n"
    "source @weights.bin weights.bin\n"
    "parts parts.bin\n"
    "part 0123456789abcdef0123456789abcdef @part 64 64\n"
    "constants @constants.bin constants.bin\n"
    "constant 0 0 112 table\n"
    "constant 1 16 16 scale\n"
    "graph body 1 @body.1 body.1\n"
    "graph body 2 @body.2 body.2\n"
    "graph body 3 @body.3 body.3\n"
    "graph body 5 @body.5 body.5\n"
    "graph head 1 @head.1 head.1\n"
    "graph head 2 @head.2 head.2\n"
    "graph head 3 @head.3 head.3\n"
    "graph head 5 @head.5 head.5\n"
    "request 0.000000 2 3 5 6 1 2 3\n"
    "request 0.250000 1 1 4 0\n"
    "end\n";

class RecordingTest : public testing::Test {
 protected:
  Result<Recording> Parse(const std::string& text) const {
    return ParseRecording(files_.WithDigests(text), files_.folder());
  }

  // What is said of the whole recording with a line of another text.
  std::string ErrorOf(const std::string& line, const std::string& other) const {
    std::string text = kWhole;
    const size_t at = text.find(line);
    EXPECT_NE(at, std::string::npos) << line;
    const Result<Recording> read = Parse(text.replace(at, line.size(), other));
    return read.ok() ? "nothing" : read.status().message();
  }

  fuzz::RecordingFiles files_;
};

TEST_F(RecordingTest, EverythingComesBack) {
  files_.Write("recording", files_.WithDigests(kWhole));
  const Recording read = Must(ReadRecording(files_.folder()));
  EXPECT_EQ(read.model, "a small one");
  EXPECT_EQ(read.precision, "fp32");
  EXPECT_TRUE(read.exact);
  EXPECT_EQ(read.step_tokens, 16);
  ASSERT_EQ(read.sources.size(), 1u);
  EXPECT_EQ(read.sources[0].bytes.data.size(), 112u);
  EXPECT_EQ(read.sources[0].digest, HashBytes(read.sources[0].bytes.data.data(), 112));
  ASSERT_EQ(read.parts.size(), 1u);
  EXPECT_EQ(ToHex(read.parts[0].name), "0123456789abcdef0123456789abcdef");
  EXPECT_EQ(read.parts[0].bytes.data.size(), 64u);
  EXPECT_EQ(read.parts[0].bytes.data[0], std::byte{3});
  ASSERT_EQ(read.requests.size(), 2u);
  EXPECT_EQ(read.requests[0].at_s, 0);
  EXPECT_EQ(read.requests[0].prompt, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(read.requests[0].answer, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(read.requests[1].at_s, 0.25);
  EXPECT_EQ(read.requests[1].prompt, (std::vector<int32_t>{4}));
  EXPECT_EQ(read.requests[1].answer, (std::vector<int32_t>{0}));
  ASSERT_EQ(read.graphs.size(), 2u);
  const Graph& body = read.graphs.at("body").one;
  bool seen = false;
  for (ValueId id = 0; id < static_cast<ValueId>(body.values().size()); ++id) {
    const Value& value = body.value(id);
    if (value.name != "scale") continue;
    seen = true;
    EXPECT_EQ(static_cast<const std::byte*>(value.constant.data)[0], std::byte{2});
  }
  EXPECT_TRUE(seen);
}

TEST_F(RecordingTest, WhatIsCutShortAnywhereIsRefused) {
  const std::string text = files_.WithDigests(kWhole);
  for (size_t size = 0; size < text.size(); ++size) {
    const Result<Recording> read = ParseRecording(text.substr(0, size), files_.folder());
    ASSERT_FALSE(read.ok()) << text.substr(0, size);
    EXPECT_NE(read.status().message().find(files_.folder()), std::string::npos) << read.status().message();
  }
  EXPECT_TRUE(ParseRecording(text, files_.folder()).ok());
  EXPECT_FALSE(ParseRecording(text + "end\n", files_.folder()).ok());
}

TEST_F(RecordingTest, FilesThatAreCutShortAreRefused) {
  for (const char* name : {"weights.bin", "constants.bin", "body.1", "head.3", "parts.bin"}) {
    fuzz::RecordingFiles files;
    const std::string text = files.WithDigests(kWhole);
    const std::string path = files.folder() + "/" + name;
    const auto size = static_cast<off_t>(std::filesystem::file_size(path));
    for (off_t left = size - 1; left >= 0; left -= 7) {
      ASSERT_EQ(truncate(path.c_str(), left), 0);
      const Result<Recording> read = ParseRecording(text, files.folder());
      // Of the cache's file only what is named is looked at.
      EXPECT_EQ(read.ok(), name == std::string("parts.bin") && left >= 128) << name << " of " << left << " bytes";
    }
  }
}

TEST_F(RecordingTest, AbsurdNumbersAreRefused) {
  const std::string many = "9223372036854775807", more = "99999999999999999999999";
  for (const std::string& count : {many, more, std::string("-1"), std::string("0")}) {
    EXPECT_NE(ErrorOf("request 0.250000 1 1 4 0", "request 0 " + count + " 1 4 0").find("how many tokens"),
              std::string::npos);
    EXPECT_NE(ErrorOf("request 0.250000 1 1 4 0", "request 0 1 " + count + " 4 0").find("how many tokens"),
              std::string::npos);
    EXPECT_NE(ErrorOf("step_tokens 16", "step_tokens " + count).find("expected a number that can be"),
              std::string::npos);
    EXPECT_NE(ErrorOf("graph body 5", "graph body " + count).find("a number of rows"), std::string::npos);
  }
  for (const std::string& count : {many, more, std::string("-1")}) {
    EXPECT_NE(ErrorOf("constant 0 0 112", "constant " + count + " 0 112").find("line 11: expected"), std::string::npos);
    EXPECT_NE(ErrorOf("constant 0 0 112", "constant 0 " + count + " 112").find("line 11: expected"), std::string::npos);
    EXPECT_NE(ErrorOf("constant 0 0 112", "constant 0 0 " + count).find("line 11: expected"), std::string::npos);
    EXPECT_NE(ErrorOf("@part 64 64", "@part " + count + " 64").find("line 9: expected"), std::string::npos);
    EXPECT_NE(ErrorOf("@part 64 64", "@part 64 " + count).find("line 9: expected"), std::string::npos);
  }
  // A million tokens that are not there take no memory; so many that are would be read.
  EXPECT_NE(ErrorOf("request 0.250000 1 1 4 0", "request 0 1048576 1 4").find("expected more tokens"),
            std::string::npos);
  EXPECT_NE(ErrorOf("request 0.250000 1 1 4 0", "request 0 1048577 1 4").find("how many tokens"), std::string::npos);
  EXPECT_NE(ErrorOf("request 0.250000 1 1 4 0", "request 0 1 1 4 0 7").find("no more tokens"), std::string::npos);
  EXPECT_NE(ErrorOf("request 0.250000 1 1 4 0", "request -1 1 1 4 0").find("expected a time"), std::string::npos);
  EXPECT_NE(ErrorOf("request 0.250000 1 1 4 0", "request nan 1 1 4 0").find("expected a time"), std::string::npos);
}

TEST_F(RecordingTest, WhatDoesNotFitIsNamed) {
  EXPECT_NE(ErrorOf("graph body 5 @body.5 body.5", "graph body 3 @body.3 body.3").find("got 3 again"),
            std::string::npos);
  EXPECT_NE(ErrorOf("graph body 1 @body.1", "graph body 1 @body.2").find("body.1: expected contents of digest"),
            std::string::npos);
  EXPECT_NE(ErrorOf("body 5 @body.5 body.5", "body 5 @body.2 body.2").find("is no polynomial of the sizes"),
            std::string::npos);
  EXPECT_NE(ErrorOf("constant 1 16 16 scale", "constant 1 56 16 scale").find("expected a place within 64 bytes"),
            std::string::npos);
  EXPECT_NE(
      ErrorOf("constant 1 16 16 scale", "constant 1 16 12 scale").find("expected 16 bytes in the recording, got 12"),
      std::string::npos);
  EXPECT_NE(ErrorOf("@part 64 64", "@part 32 64").find("a multiple of 64"), std::string::npos);
  EXPECT_NE(ErrorOf("@constants.bin constants.bin", "@constants.bin /dev/zero").find("/dev/zero: expected a file, got"),
            std::string::npos);
  EXPECT_NE(ErrorOf("@constants.bin constants.bin", "@constants.bin .").find("expected a file, got"),
            std::string::npos);
  const std::string pipe = files_.folder() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(ErrorOf("@constants.bin constants.bin", "@constants.bin pipe").find("expected a file, got"),
            std::string::npos);
  EXPECT_NE(ErrorOf("exact 1", "exactly 1").find("expected a line of another kind, got 'exactly'"), std::string::npos);
  // Packed for another instruction set: packed weights are left alone.
  const std::string other = "layout 00000000000000000000000000000000";
  std::string text = kWhole;
  const Recording read = Must(Parse(text.replace(text.find("layout @layout"), 14, other)));
  EXPECT_TRUE(read.parts.empty());
}

TEST_F(RecordingTest, GraphsThatAreNoDecoderAreNamed) {
  const Recording read = Must(Parse(kWhole));
  const auto made = PagedDecoder::Create(read, 1);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("expected"), std::string::npos) << made.status().message();
}

}  // namespace
}  // namespace thresher
