#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "platform.cuh"

namespace emulation {

Index thread, block, grid;

namespace {

constexpr std::size_t STACK = 64 << 10;

struct Copy {
  void* to;
  const void* from;
  std::size_t bytes, zeros;
};

struct Free {
  void operator()(unsigned char* memory) const { std::free(memory); }
};

struct Block {
  Index index;
  std::unique_ptr<unsigned char, Free> shared;
  unsigned waiting = 0;
  // Lanes of each warp that wait for the others, and what they exchange.
  std::vector<unsigned> lanes;
  std::vector<float> exchanged;
  std::vector<const void*> shown;
  // The block sits out all but one of this many rounds, on average.
  unsigned pace = 1;
  bool runs = true;
};

enum class State { READY, BARRIER, WARP, ENDED };

struct Fiber {
  ucontext_t context;
  Block* block;
  unsigned thread;
  State state = State::READY;
  std::vector<Copy> copies;
};

ucontext_t scheduler;
Fiber* running;
const std::function<void()>* entry;
bool progressed;
const char* failure;

void start() {
  (*entry)();
  running->state = State::ENDED;
  swapcontext(&running->context, &scheduler);
}

}  // namespace

unsigned char* shared_memory() { return running->block->shared.get(); }

void pause() { swapcontext(&running->context, &scheduler); }

void progress() { progressed = true; }

void fail(const char* reason) { failure = reason; }

void block_barrier() {
  running->state = State::BARRIER;
  running->block->waiting++;
  pause();
}

void warp_barrier() {
  running->state = State::WARP;
  running->block->lanes[running->thread / 32]++;
  pause();
}

float exchange(float value, unsigned lanes) {
  std::vector<float>& exchanged = running->block->exchanged;
  const unsigned own = running->thread;
  exchanged[own] = value;
  warp_barrier();
  const float other = exchanged[own ^ lanes];
  // Nobody writes the next value before all have read this one.
  warp_barrier();
  return other;
}

const void* const* show(const void* own) {
  std::vector<const void*>& shown = running->block->shown;
  const unsigned thread = running->thread;
  shown[thread] = own;
  warp_barrier();
  return &shown[thread - thread % 32];
}

void leave() { warp_barrier(); }

void defer_copy(void* to, const void* from, std::size_t bytes, std::size_t zeros) {
  running->copies.push_back({to, from, bytes, zeros});
}

void finish_copies() {
  for (const Copy& c : running->copies) {
    std::memcpy(c.to, c.from, c.bytes - c.zeros);
    std::memset(static_cast<char*>(c.to) + c.bytes - c.zeros, 0, c.zeros);
  }
  running->copies.clear();
}

const char* launch(Index size, unsigned threads, std::size_t bytes, unsigned seed,
                   const std::function<void()>& kernel) {
  // The indices of the running fiber are global.
  static std::mutex one_at_a_time;
  std::lock_guard<std::mutex> lock(one_at_a_time);
  grid = size;
  entry = &kernel;
  std::mt19937 random(seed);
  std::vector<std::unique_ptr<Block>> blocks;
  for (unsigned z = 0; z < size.z; z++) {
    for (unsigned y = 0; y < size.y; y++) {
      for (unsigned x = 0; x < size.x; x++) {
        blocks.push_back(std::make_unique<Block>());
        blocks.back()->index = {x, y, z};
        blocks.back()->pace = 1 + random() % 8;
        blocks.back()->lanes.resize(threads / 32);
        blocks.back()->exchanged.resize(threads);
        blocks.back()->shown.resize(threads);
        const std::size_t whole = (bytes + 127) / 128 * 128;
        auto* memory = static_cast<unsigned char*>(std::aligned_alloc(128, whole));
        if (memory == nullptr) return "out of memory";
        std::memset(memory, 0xff, whole);
        blocks.back()->shared.reset(memory);
      }
    }
  }
  std::vector<std::unique_ptr<Fiber>> fibers;
  const std::size_t stacks = blocks.size() * threads * STACK;
  void* memory = mmap(nullptr, stacks, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return "out of memory";
  for (auto& b : blocks) {
    for (unsigned t = 0; t < threads; t++) {
      fibers.push_back(std::make_unique<Fiber>());
      Fiber& f = *fibers.back();
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = static_cast<char*>(memory) + (fibers.size() - 1) * STACK;
      f.context.uc_stack.ss_size = STACK;
      f.context.uc_link = nullptr;
      makecontext(&f.context, start, 0);
      f.block = b.get();
      f.thread = t;
    }
  }
  std::vector<Fiber*> order;
  for (auto& f : fibers) order.push_back(f.get());
  std::size_t ended = 0;
  failure = nullptr;
  progressed = true;
  bool all = false;
  while (ended < order.size() && (progressed || !all)) {
    // Who cannot go on may wait for a block that sat out.
    all = !progressed;
    for (auto& b : blocks) b->runs = all || random() % b->pace == 0;
    std::shuffle(order.begin(), order.end(), random);
    progressed = false;
    for (Fiber* f : order) {
      if (f->state != State::READY || !f->block->runs) continue;
      running = f;
      thread = {f->thread, 0, 0};
      block = f->block->index;
      swapcontext(&scheduler, &f->context);
      // Who is still ready waits for a counter.
      progressed |= f->state != State::READY;
      ended += f->state == State::ENDED;
    }
    for (auto& f : fibers) {
      if (f->state == State::BARRIER && f->block->waiting == threads) {
        f->state = State::READY;
        progressed = true;
      }
      if (f->state == State::WARP && f->block->lanes[f->thread / 32] == 32) {
        f->state = State::READY;
        progressed = true;
      }
    }
    for (auto& b : blocks) {
      if (b->waiting == threads) b->waiting = 0;
      for (unsigned& lanes : b->lanes) {
        if (lanes == 32) lanes = 0;
      }
    }
  }
  munmap(memory, stacks);
  if (failure == nullptr && ended < order.size()) return "deadlock";
  return failure;
}

}  // namespace emulation
