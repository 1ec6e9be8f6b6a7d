// The kernels of transformer.cu for a processor, once for each type of element.

#ifdef LASER_EXACT
#define NAMED(name) name##_f32
// Both versions are linked into one program.
#define __nv_bfloat16 Exact
#define __float2bfloat16_rn exact
#define Pair ExactPair
#else
#define NAMED(name) name##_bf16
#endif
#define transformer_attention_32 NAMED(transformer_attention_32)
#define transformer_attention_64 NAMED(transformer_attention_64)
#define transformer_attention_128 NAMED(transformer_attention_128)
#define transformer_attention_256 NAMED(transformer_attention_256)
#define transformer_turn NAMED(transformer_turn)
#define transformer_activate NAMED(transformer_activate)
#define transformer_gate NAMED(transformer_gate)
#define transformer_normalize NAMED(transformer_normalize)
#define transformer_root_normalize NAMED(transformer_root_normalize)
#define transformer_pool NAMED(transformer_pool)

#include "../../kernels/transformer.cu"

template <typename Arguments>
static const char* run(const Arguments* p, void (*kernel)(Arguments), const std::uint32_t* grid,
                       std::uint32_t bytes, std::uint32_t seed) {
  // The kernels count memory in elements of two bytes.
  return emulation::launch({grid[0], grid[1], grid[2]}, THREADS, bytes * sizeof(Element) / 2, seed,
                           [&] { kernel(*p); });
}

extern "C" const char* NAMED(laser_emulate_transformer_attention)(const Attention<Element>* p,
                                                                   std::uint32_t size,
                                                                   const std::uint32_t* grid,
                                                                   std::uint32_t bytes,
                                                                   std::uint32_t seed) {
  switch (size) {
    case 32:
      return run(p, transformer_attention_32, grid, bytes, seed);
    case 64:
      return run(p, transformer_attention_64, grid, bytes, seed);
    case 128:
      return run(p, transformer_attention_128, grid, bytes, seed);
    case 256:
      return run(p, transformer_attention_256, grid, bytes, seed);
    default:
      return "no kernel for heads of this size";
  }
}

extern "C" const char* NAMED(laser_emulate_transformer_activate)(const Activate<Element>* p,
                                                                  const std::uint32_t* grid,
                                                                  std::uint32_t bytes,
                                                                  std::uint32_t seed) {
  return run(p, transformer_activate, grid, bytes, seed);
}

extern "C" const char* NAMED(laser_emulate_transformer_normalize)(const Normalize<Element>* p,
                                                                   const std::uint32_t* grid,
                                                                   std::uint32_t bytes,
                                                                   std::uint32_t seed) {
  return run(p, transformer_normalize, grid, bytes, seed);
}

extern "C" const char* NAMED(laser_emulate_transformer_turn)(const Turn<Element>* p,
                                                             const std::uint32_t* grid,
                                                             std::uint32_t bytes,
                                                             std::uint32_t seed) {
  return run(p, transformer_turn, grid, bytes, seed);
}

extern "C" const char* NAMED(laser_emulate_transformer_gate)(const Gate<Element>* p,
                                                             const std::uint32_t* grid,
                                                             std::uint32_t bytes,
                                                             std::uint32_t seed) {
  return run(p, transformer_gate, grid, bytes, seed);
}

extern "C" const char* NAMED(laser_emulate_transformer_root_normalize)(const RootNormalize<Element>* p,
                                                                       const std::uint32_t* grid,
                                                                       std::uint32_t bytes,
                                                                       std::uint32_t seed) {
  return run(p, transformer_root_normalize, grid, bytes, seed);
}

extern "C" const char* NAMED(laser_emulate_transformer_pool)(const Pool* p,
                                                              const std::uint32_t* grid,
                                                              std::uint32_t bytes,
                                                              std::uint32_t seed) {
  return run(p, transformer_pool, grid, bytes, seed);
}
