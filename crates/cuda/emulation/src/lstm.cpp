// The kernels of lstm.cu for a processor, once for each type of element.

#ifdef LASER_EXACT
#define NAMED(name) name##_f32
// Both versions are linked into one program.
#define __nv_bfloat16 Exact
#define __float2bfloat16_rn exact
#else
#define NAMED(name) name##_bf16
#endif
#define lstm_forward_64 NAMED(lstm_forward_64)
#define lstm_forward_32 NAMED(lstm_forward_32)
#define lstm_backward_64 NAMED(lstm_backward_64)
#define lstm_backward_32 NAMED(lstm_backward_32)

#include "../../kernels/lstm.cu"

template <typename Arguments>
static const char* run(const Arguments* p, void (*kernel)(Arguments), std::uint32_t directions,
                       std::uint32_t groups, std::uint32_t bytes, std::uint32_t seed) {
  const Index grid = {p->hidden / UNITS, directions, groups};
  // The kernels count memory in elements of two bytes.
  return emulation::launch(grid, THREADS, bytes * sizeof(Element) / 2, seed, [&] { kernel(*p); });
}

extern "C" const char* NAMED(laser_emulate_lstm_forward)(const Forward<Element>* p,
                                                          std::uint32_t rows,
                                                          std::uint32_t directions,
                                                          std::uint32_t groups, std::uint32_t bytes,
                                                          std::uint32_t seed) {
  return run(p, rows == 64 ? lstm_forward_64 : lstm_forward_32, directions, groups, bytes, seed);
}

extern "C" const char* NAMED(laser_emulate_lstm_backward)(const Backward<Element>* p,
                                                           std::uint32_t rows,
                                                           std::uint32_t directions,
                                                           std::uint32_t groups,
                                                           std::uint32_t bytes,
                                                           std::uint32_t seed) {
  return run(p, rows == 64 ? lstm_backward_64 : lstm_backward_32, directions, groups, bytes, seed);
}
