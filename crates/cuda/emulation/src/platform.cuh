// CUDA on a processor, as far as the kernels use it: every thread of the grid is a fiber, and all
// fibers run by turns on one thread of the host.
//
// What is checked besides the arithmetic: fibers run in an order and blocks at a pace that depend
// on a seed, so a missing barrier shows as a result that depends on it; asynchronous copies happen as late as they
// may; shared memory begins as NaN; addresses are aligned as CUDA wants them; a grid in which
// nobody can go on ends with an error.
//
// A warp's matrix operations are done by its first lane. With LASER_EXACT elements are float.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#define __global__
#define __device__
#define __launch_bounds__(...)
#define UNROLL_BY_4
#define UNROLL
#define DYNAMIC_SHARED(name) unsigned char* name = emulation::shared_memory()

struct Index {
  unsigned x, y, z;
};

namespace emulation {

// Of the fiber that runs.
extern Index thread, block, grid;

unsigned char* shared_memory();
void block_barrier();
void warp_barrier();
// The value of the lane whose number differs in these bits.
float exchange(float value, unsigned lanes);
// What all lanes of the warp point to, once each has something to show; it stays where it is until `leave`.
const void* const* show(const void* own);
void leave();
// Lets others run; the fiber goes on when they have.
void pause();
// Tells that others may be able to go on.
void progress();
// Makes the launch fail with this reason.
void fail(const char* reason);
void defer_copy(void* to, const void* from, std::size_t bytes, std::size_t zeros);
void finish_copies();

// Runs `kernel` as every thread of a grid of blocks with `threads` threads and `bytes` of shared
// memory. What went wrong, or null.
const char* launch(Index grid, unsigned threads, std::size_t bytes, unsigned seed,
                   const std::function<void()>& kernel);

inline bool first_lane() { return thread.x % 32 == 0; }

inline void check_aligned(const void* address, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) fail("misaligned address");
}

}  // namespace emulation

#define threadIdx emulation::thread
#define blockIdx emulation::block
#define gridDim emulation::grid

inline void __syncthreads() { emulation::block_barrier(); }
inline void __syncwarp() { emulation::warp_barrier(); }
inline float __shfl_xor_sync(unsigned, float value, int lanes) {
  return emulation::exchange(value, lanes);
}
inline int min(int a, int b) { return a < b ? a : b; }
inline void __pipeline_memcpy_async(void* to, const void* from, std::size_t bytes,
                                    std::size_t zeros = 0) {
  emulation::check_aligned(to, 16);
  emulation::check_aligned(from, 16);
  emulation::defer_copy(to, from, bytes, zeros);
}
inline void __pipeline_commit() {}
inline void __pipeline_wait_prior(int) { emulation::finish_copies(); }

inline void arrive(std::uint32_t* counter) {
  ++*counter;
  emulation::progress();
}
inline void wait_for(const std::uint32_t* counter, std::uint32_t value) {
  while (*counter < value) emulation::pause();
}

inline float __expf(float x) { return std::exp(x); }

#ifdef LASER_EXACT
struct __nv_bfloat16 {
  float value;
};
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {x}; }
inline float __bfloat162float(__nv_bfloat16 x) { return x.value; }
#else
struct __nv_bfloat16 {
  std::uint16_t bits;
};
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (std::isnan(x)) return {0x7fff};
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline float __bfloat162float(__nv_bfloat16 x) {
  const std::uint32_t bits = static_cast<std::uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
#endif

// Products of elements are of the tests' type: two of them, as a register of a matrix has them.
struct alignas(2 * sizeof(__nv_bfloat16)) Pair {
  __nv_bfloat16 at[2];
};

// A lane's part of four matrices, as kernels/platform.cuh describes them.
template <int LINE>
void load_matrices(Pair (&to)[4], const __nv_bfloat16* from) {
  // In bf16 that is 16 bytes.
  emulation::check_aligned(from, 8 * sizeof(__nv_bfloat16));
  static_assert(LINE % 8 == 0, "rows are aligned");
  const unsigned row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
  for (int k = 0; k < 2; k++) {
    to[0].at[k] = from[row * LINE + column + k];
    to[1].at[k] = from[(8 + row) * LINE + column + k];
    to[2].at[k] = from[row * LINE + 8 + column + k];
    to[3].at[k] = from[(8 + row) * LINE + 8 + column + k];
  }
}

template <int LINE>
void load_transposed(Pair (&to)[4], const __nv_bfloat16* from) {
  emulation::check_aligned(from, 8 * sizeof(__nv_bfloat16));
  static_assert(LINE % 8 == 0, "rows are aligned");
  const unsigned row = threadIdx.x % 4 * 2, column = threadIdx.x % 32 / 4;
  for (int k = 0; k < 2; k++) {
    to[0].at[k] = from[(row + k) * LINE + column];
    to[1].at[k] = from[(8 + row + k) * LINE + column];
    to[2].at[k] = from[(row + k) * LINE + 8 + column];
    to[3].at[k] = from[(8 + row + k) * LINE + 8 + column];
  }
}

template <int N>
void multiply(float (&sum)[N][4], const Pair (&left)[4], const Pair (&right)[N][2]) {
  struct Operands {
    const Pair (*left)[4];
    const Pair (*right)[N][2];
  } const own{&left, &right};
  const void* const* all = emulation::show(&own);
  const unsigned lane = threadIdx.x % 32;
  const auto of = [all](unsigned lane) { return static_cast<const Operands*>(all[lane]); };
  for (int n = 0; n < N; n++) {
    for (unsigned at = 0; at < 4; at++) {
      const unsigned row = lane / 4, column = lane % 4 * 2 + at % 2;
      for (unsigned k = 0; k < 16; k++) {
        // A lane has two neighbours; those of column 8 and up are in its registers 2 and 3.
        const Pair& x = (*of(4 * row + k % 8 / 2)->left)[k / 8 * 2 + at / 2];
        const Pair& y = (*of(4 * column + k % 8 / 2)->right)[n][k / 8];
        sum[n][at] += __bfloat162float(x.at[k % 2]) * __bfloat162float(y.at[k % 2]);
      }
    }
  }
  emulation::leave();
}

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
  static_assert(M == 16 && N == 16 && K == 16, "the shape that the kernels use");
  // As rows and columns of the matrix, whatever the layout in memory.
  float at[16][16];
};

template <typename Use, typename T, typename Layout>
void fill_fragment(fragment<Use, 16, 16, 16, T, Layout>& f, float value) {
  for (auto& row : f.at) {
    for (float& x : row) x = value;
  }
}

template <typename Use, typename T, typename Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& f, const T* from, unsigned stride) {
  constexpr bool by_rows = std::is_same_v<Layout, row_major>;
  static_assert(by_rows || std::is_same_v<Layout, col_major>, "operands have a layout");
  if (!emulation::first_lane()) return;
  // In bf16 that is 32 and 16 bytes.
  emulation::check_aligned(from, 16 * sizeof(T));
  emulation::check_aligned(from + stride, 8 * sizeof(T));
  for (int i = 0; i < 16; i++) {
    for (int j = 0; j < 16; j++) {
      f.at[i][j] = __bfloat162float(from[by_rows ? i * stride + j : j * stride + i]);
    }
  }
}

template <typename T, typename LayoutA, typename LayoutB>
void mma_sync(fragment<accumulator, 16, 16, 16, float>& d,
              const fragment<matrix_a, 16, 16, 16, T, LayoutA>& a,
              const fragment<matrix_b, 16, 16, 16, T, LayoutB>& b,
              const fragment<accumulator, 16, 16, 16, float>& c) {
  if (!emulation::first_lane()) return;
  for (int i = 0; i < 16; i++) {
    for (int j = 0; j < 16; j++) {
      float sum = c.at[i][j];
      for (int k = 0; k < 16; k++) sum += a.at[i][k] * b.at[k][j];
      d.at[i][j] = sum;
    }
  }
}

inline void store_matrix_sync(float* to, const fragment<accumulator, 16, 16, 16, float>& f,
                              unsigned stride, layout_t layout) {
  if (!emulation::first_lane()) return;
  emulation::check_aligned(to, 32);
  emulation::check_aligned(to + stride, 16);
  for (int i = 0; i < 16; i++) {
    for (int j = 0; j < 16; j++) {
      to[layout == mem_row_major ? i * stride + j : j * stride + i] = f.at[i][j];
    }
  }
}

}  // namespace nvcuda::wmma
