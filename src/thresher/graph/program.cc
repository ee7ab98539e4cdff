#include "thresher/graph/program.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace thresher {
namespace {

constexpr std::string_view kForm = "expected steps such as 's0=mul(in0,in1); s1=add(s0,0.5)', got ";

std::string WithoutBlanks(std::string_view text) {
  std::string kept;
  for (const char c : text) {
    if (c != ' ' && c != '\n' && c != '\t') kept += c;
  }
  return kept;
}

// What stands before `separator`; `rest` goes on behind it. Without a separator all of it.
std::string_view Cut(std::string_view& rest, char separator) {
  const size_t end = std::min(rest.find(separator), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

// "in12" with the prefix "in".
std::optional<int> ParseIndex(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return std::nullopt;
  text.remove_prefix(prefix.size());
  if (text.empty() || text.front() == '-') return std::nullopt;
  int index = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, index);
  return result.ec == std::errc() && result.ptr == end ? std::optional(index) : std::nullopt;
}

std::optional<ProgramArg> ParseArg(std::string_view text) {
  if (const auto index = ParseIndex(text, "in")) return ProgramArg::Operand(*index);
  if (const auto index = ParseIndex(text, "s")) return ProgramArg::Step(*index);
  float number = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return ProgramArg::Number(number);
}

std::string PrintArg(const ProgramArg& arg) {
  if (arg.kind == ProgramArg::Kind::kOperand) return "in" + std::to_string(arg.index);
  if (arg.kind == ProgramArg::Kind::kStep) return "s" + std::to_string(arg.index);
  char buffer[64];
  return {buffer, std::to_chars(buffer, buffer + sizeof(buffer), arg.number).ptr};
}

Result<ProgramStep> ParseStep(std::string_view text, size_t index) {
  const auto bad = [&] { return InvalidArgument(std::string(kForm) + "'" + std::string(text) + "'"); };
  std::string_view rest = text;
  const std::optional<int> number = ParseIndex(Cut(rest, '='), "s");
  ProgramStep step;
  step.op = Cut(rest, '(');
  if (!number || step.op.empty() || !rest.ends_with(')')) return bad();
  if (static_cast<size_t>(*number) != index) {
    return InvalidArgument("expected step s" + std::to_string(index) + ", got '" + std::string(text) +
                           "'; number the steps from 0");
  }
  rest.remove_suffix(1);
  while (!rest.empty()) {
    const bool more = rest.find(',') != std::string_view::npos;
    const std::optional<ProgramArg> arg = ParseArg(Cut(rest, ','));
    if (!arg || (more && rest.empty())) return bad();
    if (arg->kind == ProgramArg::Kind::kStep && static_cast<size_t>(arg->index) >= index) {
      return InvalidArgument(StepName(index, step) + "expected earlier steps as arguments, got s" +
                             std::to_string(arg->index));
    }
    step.args.push_back(*arg);
  }
  return step;
}

}  // namespace

std::string StepName(size_t index, const ProgramStep& step) {
  return "step " + std::to_string(index) + " (" + step.op + "): ";
}

std::string PrintProgram(const Program& program) {
  std::string text;
  for (size_t i = 0; i < program.size(); ++i) {
    text += (i == 0 ? "s" : "; s") + std::to_string(i) + "=" + program[i].op + "(";
    for (size_t a = 0; a < program[i].args.size(); ++a) text += (a == 0 ? "" : ",") + PrintArg(program[i].args[a]);
    text += ')';
  }
  return text;
}

Result<Program> ParseProgram(std::string_view text) {
  const std::string compact = WithoutBlanks(text);
  std::string_view rest = compact;
  Program program;
  while (!rest.empty()) {
    THRESHER_ASSIGN(ProgramStep step, ParseStep(Cut(rest, ';'), program.size()));
    program.push_back(std::move(step));
  }
  if (program.empty()) return InvalidArgument(std::string(kForm) + "none");
  return program;
}

}  // namespace thresher
