// The text form of graphs: what is read prints as a text that reads back as the same graph.
#include "fuzz/target.h"
#include "fuzz/tensors.h"
#include "thresher/graph/hash.h"
#include "thresher/graph/parser.h"
#include "thresher/graph/printer.h"

namespace thresher {

THRESHER_FUZZ_TARGET(graph_text, fuzz::MemoryLimit{}) {
  const Result<Graph> graph = ParseGraph(bytes, fuzz::Resolve);
  if (!graph.ok()) {
    THRESHER_FUZZ_REQUIRE(graph.status().code() != Code::kInternal, graph.status().message());
    return;
  }
  const std::string text = PrintGraph(graph.value());
  const Result<Graph> again = ParseGraph(text, fuzz::Resolve);
  THRESHER_FUZZ_REQUIRE(again.ok(), again.status().message() + " in\n" + text);
  THRESHER_FUZZ_REQUIRE(PrintGraph(again.value()) == text, PrintGraph(again.value()) + " from\n" + text);
  THRESHER_FUZZ_REQUIRE(HashGraph(again.value()) == HashGraph(graph.value()), text);
}

}  // namespace thresher
