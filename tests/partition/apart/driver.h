/* What the parts of the driver share. */
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#define MIB (1ull << 20)
#define NEEDS_CONTEXT if (current == NULL || !current->lives) return CUDA_ERROR_INVALID_CONTEXT
#define EXPECT(x, error) if (!(x)) return error

#pragma GCC visibility push(hidden)
struct CUctx_st { bool lives; uint64_t limits[8]; };
extern _Thread_local CUcontext current;
bool charge(uint64_t bytes); /* if the card has as much left */
void refund(uint64_t bytes);
#pragma GCC visibility pop
