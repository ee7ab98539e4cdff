// The bytes of a model file: one model's graphs, weights and names, readable on every machine that the engine runs on.
//
// All numbers are little-endian. The file begins with FileHeader and the table of its sections (SectionEntry). The
// header keeps its layout in every version of the format. Graphs stand in the text form of graph/printer.h, as they
// were imported: passes and plans belong to the machine that runs them. Weights begin at multiples of 64 bytes, so that
// a file in memory is used in place. docs/export.md describes the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thresher/base/status.h"
#include "thresher/graph/graph.h"
#include "thresher/graph/graph_family.h"
#include "thresher/passes/pass_manager.h"

namespace thresher {

inline constexpr std::string_view kModelMagic = "THRMODEL";
inline constexpr uint32_t kModelVersion = 2;
inline constexpr uint64_t kWeightAlignment = 64;
inline constexpr uint32_t kMaxModelSections = 1024;

struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t num_sections;
  uint64_t file_bytes;
  uint64_t digest[2];  // of the header with zeros here, and of the table; high word first
  char engine[24];     // the version that wrote the file, for messages; padded with zeros
};
static_assert(sizeof(FileHeader) == 64);

enum class SectionKind : uint32_t {
  kInfo = 1,     // once: name, and how it is computed unless the caller says otherwise
  kTensors = 2,  // once: name, type, place and digest of each tensor in kWeights
  kGraph = 3,    // once for each combination of input shapes, or for many of them
  kWeights = 4,  // once; its digest is zero: kTensors has one for each tensor
};

struct SectionEntry {
  SectionKind kind;
  uint32_t reserved;  // zero
  uint64_t offset;    // from the start of the file
  uint64_t bytes;
  uint64_t digest[2];
};
static_assert(sizeof(SectionEntry) == 40);

struct ModelGraph {
  Graph graph;  // where it is for many sizes: at some
  std::vector<std::string> output_names;
  std::optional<GraphFamily> family = {};  // of `graph`
  Dims capacity = {};                      // the largest sizes of the family
};

struct ModelContents {
  std::string name;
  std::string engine;          // the version that wrote it; set by reading
  PrecisionOptions precision;  // unless the caller says otherwise
  std::vector<ModelGraph> graphs;
  std::shared_ptr<ConstantSource> source = {};  // of the weights that are read when they are held
};

// Every graph has outputs, all names are given once, the graphs have the same inputs and outputs but for their shapes,
// and no two the same shapes.
Status CheckModel(const ModelContents& model);

// Writes a file in place of what was there: the whole of it or, after an error, nothing.
Status WriteModelFile(const std::string& path, const ModelContents& model);

// Reads what WriteModelFile wrote. Large weights are read when they are held (tensor_file.h). Fit for hostile input:
// every size is compared with that of the file before anything is made from it, and every byte that counts is covered
// by a digest, which is compared whenever it is read. Errors name the file, what was wanted and found.
Result<ModelContents> ReadModelFile(const std::string& path);

// The same of bytes in memory, which begin at a multiple of 64 and stay as long as `owner` lives.
Result<ModelContents> ReadModel(std::span<const std::byte> bytes, std::shared_ptr<const void> owner);

}  // namespace thresher
