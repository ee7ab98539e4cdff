// A load of a language model as `thresher llm record` writes it: a folder with graphs, requests and the answers that
// they got, and the places of the model's weights and of its packed weights in the cache.
//
// The file "recording" has a line for each thing, words apart by blanks, names and paths last:
//   thresher recording 1
//   model NAME; precision NAME; step_tokens N; exact 0|1
//   layout DIGEST                       how packed weights lie
//   source DIGEST FILE                  of the model, which constants are parts of; numbered from 0
//   constants DIGEST FILE               the rest of them; the next number
//   constant NUMBER OFFSET BYTES NAME   where one lies
//   parts FILE                          of the cache, with packed weights
//   part NAME DIGEST OFFSET BYTES
//   graph body|head ROWS DIGEST FILE
//   request SECONDS P A ...             P tokens of a prompt and A of its answer
//   end
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thresher/base/status.h"
#include "thresher/graph/graph.h"
#include "thresher/graph/graph_family.h"
#include "thresher/graph/hash.h"

namespace thresher {

struct Recording {
  // Bytes of a file, mapped: read only.
  struct Bytes {
    std::span<const std::byte> data;
    std::shared_ptr<const void> owner;
  };
  struct Source {
    Bytes bytes;
    Digest digest;
  };
  struct Part {
    Digest name;
    Bytes bytes;
  };
  struct Request {
    double at_s = 0;  // when it came, from the first one's
    std::vector<int32_t> prompt;
    std::vector<int32_t> answer;
  };
  // One of the two graphs: that for a row alone, and what it is at all other numbers of rows.
  struct Rows {
    Graph one;
    GraphFamily family;
  };

  std::string model;
  std::string precision;
  bool exact = false;  // answers are the same whatever is computed beside them
  int64_t step_tokens = 0;
  std::vector<Source> sources;  // which constants of the graphs are parts of
  std::vector<Part> parts;      // packed weights that an earlier process kept
  std::vector<Request> requests;
  std::map<std::string, Rows> graphs;  // "body": tokens to what the last layer gives; "head": that to scores
};

// Reads a folder. Files are compared with the digests that stand in it: what has changed since is named.
Result<Recording> ReadRecording(const std::string& folder);

// The same of what the file "recording" in a folder says.
Result<Recording> ParseRecording(std::string_view text, const std::string& folder);

}  // namespace thresher
