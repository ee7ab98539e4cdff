// Results that lie where one of the operands lies that they are made of, element by element: what is read last is
// written first, and a step touches half of the memory.
#pragma once

#include <vector>

#include "thresher/plan/plan.h"

namespace thresher {

// For each buffer of the plan, whose steps know their operands, the one in whose place it may lie, or -1: an operand
// that its step reads as it writes the result (Target::ReplacedOperand), and nobody reads later.
std::vector<int> ReplacedBuffers(const Plan& plan);

// The buffer whose place it is in the end.
int PlaceOf(const Plan& plan, int buffer);

// Steps from the first that touches a place to the last one, for each buffer that has one of its own.
struct Occupied {
  int first = 0, last = 0;
  int64_t bytes = 0;
};
std::vector<Occupied> OccupiedPlaces(const Plan& plan);

}  // namespace thresher
