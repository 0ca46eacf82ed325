// The backward pass of attention: the probabilities of each block again, and what they give. Blocks
// of keys are the outer loop where there are heads enough for the threads. Else the gradients of
// keys and values, and those of queries, have a pass each: the same sums in the same order.
#include "sequence/attention.h"
#include "base/table.h"

namespace needle::NEEDLE_ISA {
namespace {

struct GradState {
  AttentionState attention;
  HeadStrides g, dq, dk, dv;
  bool two_passes;
};

template <class T>
struct Buffers {
  const GradState& s;
  void* const* all;
  T* deltas;  // of each query: the sum of its result times that's gradient

  const void* mask() const { return all[10]; }
  const int64_t* lengths() const { return as<int64_t>(all[11]); }
};

template <class T>
struct Scratch {
  T *keys, *values;    // a block, transposed
  T *chances, *grads;  // probabilities, and the gradients of scores
  T* added;            // rows of the mask

  Scratch(T* memory, const AttentionState& s)
      : keys(memory),
        values(keys + s.depth * kKeyBlock),
        chances(values + s.width * kKeyBlock),
        grads(chances + kQueryBlock * kKeyBlock),
        added(grads + kQueryBlock * kKeyBlock) {}

  static int64_t size(const AttentionState& s) {
    return (s.depth + s.width + 2 * kQueryBlock + 1) * kKeyBlock;
  }
};

// A head of queries, and the head of keys and values that it looks at.
template <class T>
struct Head {
  const AttentionState& s;
  Sight sight;
  Mask<T> mask;
  Rows<const T> q, k, v, g;
  Rows<T> dq, dk, dv;
  const T *shift, *rest, *delta;

  Head(const Buffers<T>& b, int64_t batch, int64_t head)
      : s(b.s.attention),
        sight(sight_of(s, b.lengths(), batch)),
        mask(s, b.mask(), batch, head),
        q(head_of<const T>(b.all[4], s.q, batch, head)),
        k(head_of<const T>(b.all[5], s.k, batch, head / s.per_group())),
        v(head_of<const T>(b.all[6], s.v, batch, head / s.per_group())),
        g(head_of<const T>(b.all[3], b.s.g, batch, head)),
        dq(head_of<T>(b.all[0], b.s.dq, batch, head)),
        dk(head_of<T>(b.all[1], b.s.dk, batch, head / s.per_group())),
        dv(head_of<T>(b.all[2], b.s.dv, batch, head / s.per_group())) {
    const int64_t first = (batch * s.heads + head) * s.queries;
    shift = as<T>(b.all[8]) + first;
    rest = as<T>(b.all[9]) + first;
    delta = b.deltas + first;
  }

  void pack(const Scratch<T>& w, int64_t key) const {
    const int64_t n = least(kKeyBlock, sight.keys - key);
    transpose_block(w.keys, Rows<const T>{k.at(key), k.row}, n, s.depth);
    transpose_block(w.values, Rows<const T>{v.at(key), v.row}, n, s.width);
  }

  void score_row(T* chances, T* grads, int64_t query, int64_t seen, int64_t width,
                 const T* added) const;
  void block(const Scratch<T>& w, Interval queries, int64_t key, bool to_q, bool to_kv) const;
};

template <class T>
void Head<T>::score_row(T* chances, T* grads, int64_t query, int64_t seen, int64_t width,
                        const T* added) const {
  const T scale = static_cast<T>(s.scale), base = shift[query], log_sum = rest[query];
  const int64_t vectors = finish_scores(chances, seen, scale, added);
  for (int64_t p = 0; p < vectors; ++p) {
    const int64_t j = p * kLanes<T>;
    const Vector<T> chance = probability<T>((load(chances + j) - base) - log_sum);
    store(chances + j, chance);
    store(grads + j, chance * (load(grads + j) - delta[query]) * scale);
  }
  for (int64_t j = vectors * kLanes<T>; j < width; ++j) chances[j] = grads[j] = 0;
}

// What a block of queries and a packed block of keys add to the gradients.
template <class T>
void Head<T>::block(const Scratch<T>& w, Interval queries, int64_t key, bool to_q,
                    bool to_kv) const {
  const int64_t first = most(queries.begin, sight.first(key)), rows = queries.end - first;
  const int64_t width = least(kKeyBlock, sight.keys - key);
  if (rows <= 0) return;
  multiply_block(rows, width, s.depth, q.at(first), q.row, 1, w.keys, kKeyBlock, w.chances,
                 kKeyBlock, false);
  multiply_block(rows, width, s.width, g.at(first), g.row, 1, w.values, kKeyBlock, w.grads,
                 kKeyBlock, false);
  const MaskRows<T> masks(mask, w.added, key, width);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t query = first + i;
    score_row(w.chances + i * kKeyBlock, w.grads + i * kKeyBlock, query,
              least(width, sight.of(query) - key), width, masks.row(query));
  }
  if (to_kv) {
    multiply_block(width, s.width, rows, w.chances, 1, kKeyBlock, g.at(first), g.row, dv.at(key),
                   dv.row, true);
    multiply_block(width, s.depth, rows, w.grads, 1, kKeyBlock, q.at(first), q.row, dk.at(key),
                   dk.row, true);
  }
  if (to_q)
    multiply_block(rows, s.depth, width, w.grads, kKeyBlock, 1, k.at(key), k.row, dq.at(first),
                   dq.row, true);
}

// All blocks of queries that see a block of keys, for one head.
template <class T>
void down_the_queries(const Head<T>& head, const Scratch<T>& w, int64_t key, bool to_q) {
  if (head.mask.hides(key, least(kKeyBlock, head.sight.keys - key))) return;
  head.pack(w, key);
  const int64_t first = head.sight.first(key) / kQueryBlock * kQueryBlock;
  for (int64_t i = first; i < head.s.queries; i += kQueryBlock)
    head.block(w, {i, least(head.s.queries, i + kQueryBlock)}, key, to_q, true);
}

template <class T>
void along_the_keys(const Head<T>& head, const Scratch<T>& w, Interval queries) {
  const int64_t end = head.sight.of(queries.end - 1);
  for (int64_t key = 0; key < end; key += kKeyBlock) {
    if (head.mask.hides(key, least(kKeyBlock, head.sight.keys - key))) continue;
    head.pack(w, key);
    head.block(w, queries, key, true, false);
  }
}

template <class T>
void clear(const Rows<T>& x, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i) std::memset(x.at(i), 0, width * sizeof(T));
}

template <class T>
void prepare_head(const Buffers<T>& b, int64_t batch, int64_t h) {
  const AttentionState& s = b.s.attention;
  const Head<T> head(b, batch, h);
  const auto out = head_of<const T>(b.all[7], s.out, batch, h);
  T* deltas = b.deltas + (batch * s.heads + h) * s.queries;
  for (int64_t i = 0; i < s.queries; ++i)
    deltas[i] = sum_vectors<T>(s.width, [&](int64_t j, const auto& part) {
      return part.load(out.at(i) + j) * part.load(head.g.at(i) + j);
    });
  clear(head.dq, s.queries, s.depth);
  if (h % s.per_group() != 0) return;
  clear(head.dk, s.keys, s.depth);
  clear(head.dv, s.keys, s.width);
}

template <class T>
int64_t run_attention_grad(const Plan* plan, void* const* buffers, void* workspace) {
  const GradState& g = state_of<GradState>(plan);
  const AttentionState& s = g.attention;
  T* memory = as<T>(workspace);
  const Buffers<T> b{g, buffers, memory + s.team * s.scratch};
  const auto scratch = [&](int thread) { return Scratch<T>(memory + thread * s.scratch, s); };
  run_tasks(s.team, s.batch * s.heads,
            [&](int64_t i, int) { prepare_head(b, i / s.heads, i % s.heads); });
  const auto heads = [&](int64_t place, const auto& body) {  // of one head of keys
    const int64_t first = place % s.groups * s.per_group();
    for (int64_t h = first; h < first + s.per_group(); ++h) body(Head<T>(b, place / s.groups, h));
  };
  const int64_t places = s.batch * s.groups, blocks = parts(s.keys, kKeyBlock);
  if (!g.two_passes) {
    run_tasks(s.team, places, [&](int64_t place, int thread) {
      heads(place, [&](const Head<T>& head) {
        for (int64_t key = 0; key < head.sight.keys; key += kKeyBlock)
          down_the_queries(head, scratch(thread), key, true);
      });
    });
    return -1;
  }
  run_tasks(s.team, places * blocks, [&](int64_t task, int thread) {
    const int64_t key = task % blocks * kKeyBlock;
    heads(task / blocks, [&](const Head<T>& head) {
      if (key < head.sight.keys) down_the_queries(head, scratch(thread), key, false);
    });
  });
  const int64_t stretches = parts(s.queries, kQueryBlock);
  run_tasks(s.team, s.batch * s.heads * stretches, [&](int64_t task, int thread) {
    const int64_t first = task % stretches * kQueryBlock, place = task / stretches;
    along_the_keys(Head<T>(b, place / s.heads, place % s.heads), scratch(thread),
                   {first, least(s.queries, first + kQueryBlock)});
  });
  return -1;
}

}  // namespace

const char* plan_attention_grad(Plan* plan, double scale, bool causal, const Operand& dq,
                                const Operand& dk, const Operand& dv, const Operand& g,
                                const Operand& q, const Operand& k, const Operand& v,
                                const Operand& out, const Operand& mask) {
  GradState& grad = state_of<GradState>(plan);
  AttentionState& s = grad.attention;
  if (const char* refused = describe_attention(s, scale, causal, q, k, v, mask)) return refused;
  if (g.ndim != 4 || (g.shape[3] > 1 && g.strides[3] != 1))
    return "attention: the last axis must be dense";
  s.out = head_strides(out);
  grad.g = head_strides(g);
  grad.dq = head_strides(dq);
  grad.dk = head_strides(dk);
  grad.dv = head_strides(dv);
  const int64_t work = product({s.batch, s.heads, s.queries, s.keys, s.depth + s.width});
  s.team = work < 4 * kSerial ? 1 : threads();
  grad.two_passes = s.batch * s.groups < s.team;
  s.scratch = round_up(Scratch<float>::size(s), 64);
  const int64_t deltas = product({s.batch, s.heads, s.queries});
  plan->workspace = product({s.team * s.scratch + deltas, kItemSize[q.dtype]});
  plan->run = q.dtype == kFloat64 ? run_attention_grad<double> : run_attention_grad<float>;
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
