// Results that lie where one of the operands lies that they are made of, element by element: what is read last is
// written first, and a step touches half of the memory.
#pragma once

#include <vector>

#include "thresher/plan/memory_planner.h"
#include "thresher/plan/plan.h"

namespace thresher {

// For each buffer of the plan, whose steps know their operands, the one in whose place it may lie, or -1: an operand
// that its step reads as it writes the result (Target::ReplacedOperand), and nobody reads later.
std::vector<int> ReplacedBuffers(const Plan& plan);

// The buffer whose place it is in the end.
int PlaceOf(const Plan& plan, int buffer);

// How long and how much of the arena each buffer wants that has a place of its own, for all that lie there.
std::vector<Lifetime> LifetimesOfPlaces(const Plan& plan);

}  // namespace thresher
