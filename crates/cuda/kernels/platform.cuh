// What the kernels need of CUDA beyond the language. `emulation/src/platform.cuh` has the same for a
// processor; the tests compile the kernels with that.
#pragma once

#include <cuda_bf16.h>
#include <cuda_pipeline.h>
#include <mma.h>
#include <stdint.h>

// Lets loads of the next rounds begin before the products of this one end.
#define UNROLL_BY_4 _Pragma("unroll 4")
#define UNROLL _Pragma("unroll")
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

// Two neighbouring elements, as a register of a matrix has them.
struct alignas(4) Pair {
  __nv_bfloat16 at[2];
};

__device__ inline uint32_t word(const Pair& pair) { return *reinterpret_cast<const uint32_t*>(&pair); }

// Brings 16 x 16 elements of shared memory, whose rows are `LINE` elements apart, to a warp's registers, as four matrices
// of 8 x 8: above left, below left, above right, below right. Lane 4 i + j gets the elements 2 j and 2 j + 1 of each
// one's row i.
template <int LINE>
__device__ inline void load_matrices(Pair (&to)[4], const __nv_bfloat16* from) {
  const int lane = threadIdx.x % 32;
  const uint32_t row = __cvta_generic_to_shared(from + lane % 16 * LINE + lane / 16 * 8);
  uint32_t* words = reinterpret_cast<uint32_t*>(to);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}

// The same with each of the four transposed.
template <int LINE>
__device__ inline void load_transposed(Pair (&to)[4], const __nv_bfloat16* from) {
  const int lane = threadIdx.x % 32;
  const uint32_t row = __cvta_generic_to_shared(from + lane % 16 * LINE + lane / 16 * 8);
  uint32_t* words = reinterpret_cast<uint32_t*>(to);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}

// Adds products of a matrix [16, 16] and `N` matrices [16, 8] to sums [16, 8] of a warp. Lane 4 i + j has of a sum the
// elements 2 j and 2 j + 1 of row i, then of row 8 + i; of the first matrix its part of four as `load_matrices` brings
// them, of the others the rows 2 j and 2 j + 1 of column i, then the rows 8 + 2 j and 9 + 2 j.
template <int N>
__device__ inline void multiply(float (&sum)[N][4], const Pair (&left)[4], const Pair (&right)[N][2]) {
  UNROLL for (int n = 0; n < N; n++) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])
        : "r"(word(left[0])), "r"(word(left[1])), "r"(word(left[2])), "r"(word(left[3])), "r"(word(right[n][0])),
          "r"(word(right[n][1])));
  }
}
