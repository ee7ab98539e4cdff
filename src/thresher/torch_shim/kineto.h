// Kineto's headers, which PyTorch ships. A warning in them is not ours to mend.
#pragma once

#define KINETO_NAMESPACE libkineto
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <libkineto.h>
#include <output_base.h>
#pragma GCC diagnostic pop
