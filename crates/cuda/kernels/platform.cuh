// What the kernels need of CUDA beyond the language. `emulation/src/platform.cuh` has the same for a
// processor; the tests compile the kernels with that.
#pragma once

#include <cuda_bf16.h>
#include <cuda_pipeline.h>
#include <mma.h>
#include <stdint.h>

// Lets loads of the next rounds begin before the products of this one end.
#define UNROLL_BY_4 _Pragma("unroll 4")
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

// Makes all that the calling block has written before its last __syncthreads() visible to whoever
// sees the count.
__device__ inline void arrive(uint32_t* counter) {
  __threadfence();
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

// Waits until a counter has reached a value.
__device__ inline void wait_for(const uint32_t* counter, uint32_t value) {
  uint32_t seen;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  } while (seen < value);
  __threadfence();
}
