// One LSTM layer of one direction or two over a batch of sentences, all time steps in one launch,
// and the backward pass through it.
//
// With gates in PyTorch's order i, f, g, o, x the input product and b both biases:
//
//   i, f, o = sigmoid(x + b + W h),  g = tanh(x + b + W h),  c' = f c + i g,  h' = o tanh(c')
//
// The kernels are persistent (Diamos et al., "Persistent RNNs", ICML 2016): a block keeps the
// recurrent weights of UNITS units in shared memory, and all blocks run at the same time, so that a
// step costs one exchange of states through the second-level cache instead of two launches. The
// grid is (H / UNITS, directions, groups of sentences). Blocks of the same direction and group
// wait for one another after each step; nothing else has to be shared.
//
// They must be launched cooperatively: a block that waits for one that has not been started waits
// forever.

#include "lstm.cuh"
// By its name alone: the tests have another one.
#include <platform.cuh>

// Older GPUs have neither products in bf16 nor asynchronous copies; nobody launches these there.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

namespace {

using namespace nvcuda;

using Element = __nv_bfloat16;

constexpr int UNITS = 16;
constexpr int COLUMNS = 4 * UNITS;
constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
// Elements between rows in shared memory, so that eight rows lie in different banks.
constexpr int PAD = 8;
// Elements of one copy: 16 bytes in bf16.
constexpr int VECTOR = 8;
// Floats between rows of sums.
constexpr int SUM_PAD = 4;

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

// Copies `rows` rows of `width` elements to shared memory; rows from `known` on become zero.
__device__ inline void copy_rows(Element* to, int rows, const Element* from, size_t stride,
                                 int known, int width) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int row = warp; row < rows; row += WARPS) {
    // The address of a row that is not there must still be one.
    const Element* source = row < known ? from + row * stride : from;
    const size_t zeros = row < known ? 0 : VECTOR * sizeof(Element);
    for (int column = lane * VECTOR; column < width; column += 32 * VECTOR) {
      __pipeline_memcpy_async(to + row * (width + PAD) + column, source + column,
                              VECTOR * sizeof(Element), zeros);
    }
  }
}

__device__ inline void await_copies() {
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
}

// The product a bᵀ of a block, with a [ROWS, depth] and b [WIDTH, depth] in shared memory. Each
// warp multiplies DOWN x ACROSS fragments; warps that are not needed for that share the depth.
template <int ROWS, int WIDTH, int DOWN, int ACROSS>
struct Product {
  static constexpr int TILES = (ROWS / (16 * DOWN)) * (WIDTH / (16 * ACROSS));
  static constexpr int PARTS = WARPS / TILES;
  static constexpr int LINE = WIDTH + SUM_PAD;

  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[DOWN][ACROSS];
  int part, row, column;

  __device__ Product() {
    const int warp = threadIdx.x / 32, tile = warp % TILES;
    part = warp / TILES;
    row = tile / (WIDTH / (16 * ACROSS)) * 16 * DOWN;
    column = tile % (WIDTH / (16 * ACROSS)) * 16 * ACROSS;
    for (int i = 0; i < DOWN; i++) {
      for (int j = 0; j < ACROSS; j++) wmma::fill_fragment(sum[i][j], 0.0f);
    }
  }

  __device__ void add(const Element* a, int stride_a, const Element* b, int stride_b, int depth) {
    UNROLL_BY_4
    for (int k = part * 16; k < depth; k += PARTS * 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, Element, wmma::row_major> left[DOWN];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, Element, wmma::col_major> right[ACROSS];
      for (int i = 0; i < DOWN; i++) {
        wmma::load_matrix_sync(left[i], a + (row + 16 * i) * stride_a + k, stride_a);
      }
      for (int j = 0; j < ACROSS; j++) {
        wmma::load_matrix_sync(right[j], b + (column + 16 * j) * stride_b + k, stride_b);
      }
      for (int i = 0; i < DOWN; i++) {
        for (int j = 0; j < ACROSS; j++) wmma::mma_sync(sum[i][j], left[i], right[j], sum[i][j]);
      }
    }
  }

  // Writes the parts, [PARTS, ROWS, LINE], which may lie where a is.
  __device__ void store(float* sums) {
    __syncthreads();
    for (int i = 0; i < DOWN; i++) {
      for (int j = 0; j < ACROSS; j++) {
        float* to = sums + (part * ROWS + row + 16 * i) * LINE + column + 16 * j;
        wmma::store_matrix_sync(to, sum[i][j], LINE, wmma::mem_row_major);
      }
    }
    __syncthreads();
  }

  __device__ static float at(const float* sums, int row, int column) {
    float sum = 0.0f;
    for (int part = 0; part < PARTS; part++) sum += sums[(part * ROWS + row) * LINE + column];
    return sum;
  }
};

// The step that a direction visits before step t, and how many sentences of step t go on from it.
struct Previous {
  uint32_t begin = 0;
  int rows = 0;

  __device__ Previous(const uint32_t* offsets, uint32_t steps, uint32_t t, bool reverse) {
    if (reverse && t + 1 < steps) {
      begin = offsets[t + 1];
      rows = offsets[t + 2] - begin;
    } else if (!reverse && t > 0) {
      begin = offsets[t - 1];
      // Sentences that end before t have no state to go on from.
      rows = offsets[t + 1] - offsets[t];
    }
  }
};

template <int ROWS>
__device__ void forward(const Forward<Element>& p) {
  using Sums = Product<ROWS, COLUMNS, 2, 2>;
  // Elements of a slice of sentences for each thread; all of them belong to the same unit.
  constexpr int ITEMS = ROWS * UNITS / THREADS;
  DYNAMIC_SHARED(shared);
  const int h = p.hidden, stride = h + PAD;
  Element* weights = reinterpret_cast<Element*>(shared);
  Element* tile = weights + COLUMNS * stride;
  float* sums = reinterpret_cast<float*>(tile);

  const int direction = blockIdx.y, directions = gridDim.y;
  const int unit = blockIdx.x * UNITS + threadIdx.x % UNITS;
  uint32_t* arrivals = p.arrivals + blockIdx.z * directions + direction;
  float bias[4];
  for (int gate = 0; gate < 4; gate++) {
    bias[gate] = p.bias[(direction * 4 + gate) * h + unit];
    const Element* rows = p.recurrent + ((size_t)(direction * 4 + gate) * h + blockIdx.x * UNITS) * h;
    copy_rows(weights + gate * UNITS * stride, UNITS, rows, h, UNITS, h);
  }
  await_copies();

  for (uint32_t i = 0; i < p.steps; i++) {
    const uint32_t t = direction ? p.steps - 1 - i : i;
    const uint32_t begin = p.offsets[t];
    const int rows = p.offsets[t + 1] - begin;
    const Previous previous(p.offsets, p.steps, t, direction);
    bool waited = false;
    for (int slice = blockIdx.z * ROWS; slice < rows || !waited; slice += gridDim.z * ROWS) {
      // What does not depend on other blocks is read before they are waited for.
      float input[ITEMS][4], cell[ITEMS];
      for (int item = 0; item < ITEMS; item++) {
        const int row = slice + (item * THREADS + threadIdx.x) / UNITS;
        if (row >= rows) continue;
        const size_t token = (size_t)(begin + row) * directions + direction;
        const size_t sentence = (size_t)row * directions + direction;
        const Element* x = p.products + token * 4 * h + unit;
        for (int gate = 0; gate < 4; gate++) {
          input[item][gate] = __bfloat162float(x[gate * h]) + bias[gate];
        }
        cell[item] = row < previous.rows ? p.cell[sentence * h + unit] : 0.0f;
      }
      if (!waited) {
        if (threadIdx.x == 0) wait_for(arrivals, i * gridDim.x);
        __syncthreads();
        waited = true;
      }
      const bool continued = slice < previous.rows;
      if (continued) {
        const size_t first = ((size_t)(previous.begin + slice) * directions + direction) * h;
        copy_rows(tile, ROWS, p.states + first, directions * h, previous.rows - slice, h);
        await_copies();
        Sums product;
        product.add(tile, stride, weights, stride, h);
        product.store(sums);
      }
      for (int item = 0; item < ITEMS; item++) {
        const int local = (item * THREADS + threadIdx.x) / UNITS, row = slice + local;
        if (row >= rows) continue;
        float sum[4];
        for (int gate = 0; gate < 4; gate++) {
          const int column = gate * UNITS + threadIdx.x % UNITS;
          sum[gate] = input[item][gate] + (continued ? Sums::at(sums, local, column) : 0.0f);
        }
        const float in = sigmoid(sum[0]), forget = sigmoid(sum[1]), candidate = tanhf(sum[2]),
                    out = sigmoid(sum[3]);
        const float c = forget * cell[item] + in * candidate;
        const float state = out * tanhf(c);
        const size_t token = (size_t)(begin + row) * directions + direction;
        const size_t sentence = ((size_t)row * directions + direction) * h + unit;
        p.cell[sentence] = c;
        p.states[token * h + unit] = __float2bfloat16_rn(state);
        if (p.gates) {
          Element* gates = p.gates + token * 4 * h + unit;
          gates[0] = __float2bfloat16_rn(in);
          gates[h] = __float2bfloat16_rn(forget);
          gates[2 * h] = __float2bfloat16_rn(candidate);
          gates[3 * h] = __float2bfloat16_rn(out);
        }
        if (p.cells) p.cells[token * h + unit] = c;
        if (p.pooling == NONE) continue;
        const bool fresh = row >= previous.rows;
        const float before = fresh ? 0.0f : p.pooled[sentence];
        if (p.pooling == MAX) {
          // Of equal states the first wins, whatever the order of the visits.
          const bool larger = fresh || (direction ? state >= before : state > before);
          p.pooled[sentence] = larger ? state : before;
          if (p.argmax && larger) p.argmax[sentence] = t;
        } else {
          p.pooled[sentence] = p.pooling == SUM ? before + state : state;
        }
      }
      // The next slice's states overwrite the sums.
      __syncthreads();
    }
    if (threadIdx.x == 0) arrive(arrivals);
  }
}

// Gradients of the gates before their non-linearity. Those of a state are the sum of what comes
// from above and of what the next visited step sends back, which all its gates contribute to: the
// blocks exchange those, four times as much as in the forward pass, gate by gate.
template <int ROWS>
__device__ void backward(const Backward<Element>& p) {
  using Sums = Product<ROWS, UNITS, 1, 1>;
  constexpr int ITEMS = ROWS * UNITS / THREADS;
  DYNAMIC_SHARED(shared);
  const int h = p.hidden, stride = h + PAD, stride_weights = 4 * h + PAD;
  Element* weights = reinterpret_cast<Element*>(shared);
  Element* tile = weights + UNITS * stride_weights;
  float* sums = reinterpret_cast<float*>(tile);

  const int direction = blockIdx.y, directions = gridDim.y;
  const int unit = blockIdx.x * UNITS + threadIdx.x % UNITS;
  uint32_t* arrivals = p.arrivals + blockIdx.z * directions + direction;
  const Element* rows_of_weights =
      p.recurrent + ((size_t)direction * h + blockIdx.x * UNITS) * 4 * h;
  copy_rows(weights, UNITS, rows_of_weights, 4 * h, UNITS, 4 * h);
  await_copies();

  for (uint32_t i = 0; i < p.steps; i++) {
    const uint32_t t = direction ? i : p.steps - 1 - i;
    const uint32_t begin = p.offsets[t];
    const int rows = p.offsets[t + 1] - begin;
    const Previous previous(p.offsets, p.steps, t, direction);
    // The next in the direction's order, visited before this one in the backward pass.
    const Previous next(p.offsets, p.steps, t, !direction);
    if (threadIdx.x == 0) wait_for(arrivals, i * gridDim.x);
    __syncthreads();
    for (int slice = blockIdx.z * ROWS; slice < rows; slice += gridDim.z * ROWS) {
      const bool sent_back = slice < next.rows;
      if (sent_back) {
        Sums product;
        for (int gate = 0; gate < 4; gate++) {
          const size_t first =
              ((size_t)(next.begin + slice) * directions + direction) * 4 * h + (size_t)gate * h;
          copy_rows(tile, ROWS, p.d_products + first, directions * 4 * h, next.rows - slice, h);
          await_copies();
          product.add(tile, stride, weights + gate * h, stride_weights, h);
          __syncthreads();
        }
        product.store(sums);
      }
      for (int item = 0; item < ITEMS; item++) {
        const int local = (item * THREADS + threadIdx.x) / UNITS, row = slice + local;
        if (row >= rows) continue;
        const size_t token = (size_t)(begin + row) * directions + direction;
        const size_t sentence = ((size_t)row * directions + direction) * h + unit;
        const bool last = row >= next.rows;
        float d_state = sent_back ? Sums::at(sums, local, threadIdx.x % UNITS) : 0.0f;
        if (p.d_states) d_state += __bfloat162float(p.d_states[token * h + unit]);
        if (p.pooling == MAX) d_state += p.argmax[sentence] == t ? p.d_pooled[sentence] : 0.0f;
        if (p.pooling == SUM) d_state += p.d_pooled[sentence];
        if (p.pooling == LAST) d_state += last ? p.d_pooled[sentence] : 0.0f;

        const Element* gates = p.gates + token * 4 * h + unit;
        const float in = __bfloat162float(gates[0]), forget = __bfloat162float(gates[h]),
                    candidate = __bfloat162float(gates[2 * h]),
                    out = __bfloat162float(gates[3 * h]);
        const float squashed = tanhf(p.cells[token * h + unit]);
        float before = 0.0f;
        if (row < previous.rows) {
          const size_t at = (size_t)(previous.begin + row) * directions + direction;
          before = p.cells[at * h + unit];
        }
        const float d_cell = (last ? 0.0f : p.d_cell[sentence]) +
                             d_state * out * (1.0f - squashed * squashed);
        p.d_cell[sentence] = d_cell * forget;
        Element* d_gates = p.d_products + token * 4 * h + unit;
        d_gates[0] = __float2bfloat16_rn(d_cell * candidate * in * (1.0f - in));
        d_gates[h] = __float2bfloat16_rn(d_cell * before * forget * (1.0f - forget));
        d_gates[2 * h] = __float2bfloat16_rn(d_cell * in * (1.0f - candidate * candidate));
        d_gates[3 * h] = __float2bfloat16_rn(d_state * squashed * out * (1.0f - out));
      }
      // The next slice's gates overwrite the sums.
      __syncthreads();
    }
    if (threadIdx.x == 0) arrive(arrivals);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1) lstm_forward_64(Forward<Element> p) {
  forward<64>(p);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) lstm_forward_32(Forward<Element> p) {
  forward<32>(p);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) lstm_backward_64(Backward<Element> p) {
  backward<64>(p);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) lstm_backward_32(Backward<Element> p) {
  backward<32>(p);
}

#endif
