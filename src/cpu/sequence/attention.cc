// The forward pass of attention. For each block of queries and each block of keys: the scores by
// the product's tile, the running maximum and sum of each row, and the values' product.
#include "sequence/attention.h"

#include "base/table.h"

namespace needle::NEEDLE_ISA {
namespace {

template <class T>
struct Forward {
  const AttentionState& s;
  Sight sight;
  Mask<T> mask;
  Rows<const T> q, v;
  Rows<T> out;
  T *shift, *rest;
  const T* keys;  // transposed, block by block
  T *scores, *sums, *added;

  void run(Interval queries);
};

// A row's maximum grows: what was summed before is smaller by comparison.
template <class T>
void rescale(T* out, int64_t width, T* sums, T factor) {
  for_vectors<T>(width, [&](int64_t j, const auto& part) {
    part.store(out + j, part.load(out + j) * factor);
  });
  store(sums, load(sums) * factor);
}

// Scores become exponentials; returns whether the row's earlier sums still count as they are.
template <class T>
void exponentials(T* scores, int64_t vectors, T* shift, T* sums, T* out, int64_t width) {
  Vector<T> top = splat(-math::kInfinity<T>);
  for (int64_t p = 0; p < vectors; ++p) top = larger(load(scores + p * kLanes<T>), top);
  const T largest = largest_lane<T>(top), before = *shift;
  if (largest > before) {
    if (before > -math::kInfinity<T>) rescale(out, width, sums, std::exp(before - largest));
    *shift = largest;
  }
  // Where all is masked so far, -inf - -inf would be NaN.
  const T base = *shift > -math::kInfinity<T> ? *shift : T(0);
  Vector<T> sum = load(sums);
  for (int64_t p = 0; p < vectors; ++p) {
    const Vector<T> e = probability<T>(load(scores + p * kLanes<T>) - base);
    store(scores + p * kLanes<T>, e);
    sum += e;
  }
  store(sums, sum);
}

template <class T>
void Forward<T>::run(Interval queries) {
  for (int64_t i = 0; i < queries.size(); ++i) {
    shift[queries.begin + i] = -math::kInfinity<T>;
    store(sums + i * kLanes<T>, Vector<T>{});
    std::memset(out.at(queries.begin + i), 0, s.width * sizeof(T));
  }
  const int64_t end = sight.of(queries.end - 1);
  for (int64_t key = 0; key < end; key += kKeyBlock) {
    const int64_t width = least(kKeyBlock, sight.keys - key);
    if (mask.hides(key, width)) continue;
    const MaskRows<T> masks(mask, added, key, width);
    const int64_t first = most(queries.begin, sight.first(key)), rows = queries.end - first;
    multiply_block(rows, width, s.depth, q.at(first), q.row, 1, keys + key * s.depth, kKeyBlock,
                   scores, kKeyBlock, false);
    for (int64_t i = 0; i < rows; ++i) {
      T* row = scores + i * kKeyBlock;
      const int64_t query = first + i, seen = least(width, sight.of(query) - key);
      const int64_t vectors = finish_scores(row, seen, static_cast<T>(s.scale), masks.row(query));
      exponentials(row, vectors, shift + query, sums + (query - queries.begin) * kLanes<T>,
                   out.at(query), s.width);
      for (int64_t j = vectors * kLanes<T>; j < width; ++j) row[j] = 0;
    }
    multiply_block(rows, s.width, width, scores, kKeyBlock, 1, v.at(key), v.row, out.at(first),
                   out.row, true);
  }
  for (int64_t i = queries.begin; i < queries.end; ++i) {
    const T sum = add_lanes<T>(load(sums + (i - queries.begin) * kLanes<T>));
    rest[i] = sum == 0 ? T(0) : std::log(sum);
    if (sum == 0) {  // the query sees no key
      shift[i] = 0;
      continue;
    }
    const T factor = 1 / sum;
    for_vectors<T>(s.width, [&](int64_t j, const auto& part) {
      part.store(out.at(i) + j, part.load(out.at(i) + j) * factor);
    });
  }
}

template <class T>
int64_t scratch_elements(const AttentionState& s) {
  const int64_t block = kQueryBlock * (kKeyBlock + kLanes<T>)+kKeyBlock;
  return round_up(product({round_up(s.keys, kKeyBlock), s.depth}), 64) + block;
}

template <class T>
int64_t run_attention(const Plan* plan, void* const* buffers, void* workspace) {
  const AttentionState& s = state_of<AttentionState>(plan);
  const auto* lengths = as<int64_t>(buffers[7]);
  const int64_t all = round_up(s.keys, kKeyBlock);
  run_tasks(s.team, s.batch * s.groups * s.chunks, [&](int64_t task, int thread) {
    // The last queries see most keys: they come first.
    const int64_t chunk = s.chunks - 1 - task % s.chunks, place = task / s.chunks;
    const int64_t batch = place / s.groups, group = place % s.groups;
    T* keys = as<T>(workspace) + thread * s.scratch;
    T* scores = keys + round_up(all * s.depth, 64);
    T* sums = scores + kQueryBlock * kKeyBlock;
    const Sight sight = sight_of(s, lengths, batch);
    const auto k = head_of<const T>(buffers[4], s.k, batch, group);
    const auto v = head_of<const T>(buffers[5], s.v, batch, group);
    for (int64_t key = 0; key < sight.keys; key += kKeyBlock)
      transpose_block(keys + key * s.depth, Rows<const T>{k.at(key), k.row},
                      least(kKeyBlock, sight.keys - key), s.depth);
    for (int64_t h = group * s.per_group(); h < (group + 1) * s.per_group(); ++h) {
      const int64_t first = (batch * s.heads + h) * s.queries;
      Forward<T> forward{s,
                         sight,
                         Mask<T>(s, buffers[6], batch, h),
                         head_of<const T>(buffers[3], s.q, batch, h),
                         v,
                         head_of<T>(buffers[0], s.out, batch, h),
                         as<T>(buffers[1]) + first,
                         as<T>(buffers[2]) + first,
                         keys,
                         scores,
                         sums,
                         sums + kQueryBlock * kLanes<T>};
      const int64_t end = least(s.queries, (chunk + 1) * s.chunk);
      for (int64_t i = chunk * s.chunk; i < end; i += kQueryBlock)
        forward.run({i, least(end, i + kQueryBlock)});
    }
  });
  return -1;
}

template <class T>
void choose_tasks(AttentionState& s, Plan* plan) {
  const int64_t places = s.batch * s.groups;
  const int64_t blocks = most(1, parts(s.queries, kQueryBlock));
  const int64_t work = product({s.batch, s.heads, s.queries, s.keys, s.depth + s.width});
  s.team = work < 8 * kSerial ? 1 : threads();
  s.chunks = places >= s.team ? 1 : least(blocks, parts(2 * s.team, most(1, places)));
  s.chunk = parts(blocks, s.chunks) * kQueryBlock;
  s.chunks = parts(most(1, s.queries), s.chunk);
  s.team = static_cast<int>(least(s.team, most(1, places * s.chunks)));
  s.scratch = scratch_elements<T>(s);
  plan->workspace = product({s.team, s.scratch, static_cast<int64_t>(sizeof(T))});
}

}  // namespace

const char* describe_attention(AttentionState& s, double scale, bool causal, const Operand& q,
                               const Operand& k, const Operand& v, const Operand& mask) {
  const int64_t lanes = kVectorBytes / kItemSize[q.dtype];
  for (const Operand* x : {&q, &k, &v}) {
    if (x->ndim != 4) return "attention: q, k and v are [batch, heads, length, depth]";
    if (x->shape[3] > 1 && x->strides[3] != 1) return "attention: the last axis must be dense";
    if (!kMaskedLoads && x->shape[3] % lanes != 0) return "attention: rows of whole vectors";
  }
  if (q.dtype != kFloat32 && q.dtype != kFloat64) return "attention: float32 or float64";
  s.batch = q.shape[0];
  s.heads = q.shape[1];
  s.groups = k.shape[1];
  s.queries = q.shape[2];
  s.keys = k.shape[2];
  s.depth = q.shape[3];
  s.width = v.shape[3];
  if (s.groups == 0 || s.depth == 0 || s.width == 0) return "attention: an empty axis";
  s.q = head_strides(q);
  s.k = head_strides(k);
  s.v = head_strides(v);
  s.scale = scale;
  s.causal = causal;
  s.has_mask = mask.ndim == 4;
  s.mask_is_bool = mask.dtype == kBool;
  if (s.has_mask && !s.mask_is_bool && mask.dtype != q.dtype)
    return "attention: a mask of bools or of q's dtype";
  for (int i = 0; s.has_mask && i < 4; ++i) s.mask[i] = mask.shape[i] == 1 ? 0 : mask.strides[i];
  return nullptr;
}

const char* plan_attention(Plan* plan, double scale, bool causal, const Operand& out,
                           const Operand& q, const Operand& k, const Operand& v,
                           const Operand& mask) {
  AttentionState& s = state_of<AttentionState>(plan);
  if (const char* refused = describe_attention(s, scale, causal, q, k, v, mask)) return refused;
  s.out = head_strides(out);
  if (q.dtype == kFloat64) {
    choose_tasks<double>(s, plan);
    plan->run = run_attention<double>;
  } else {
    choose_tasks<float>(s, plan);
    plan->run = run_attention<float>;
  }
  return nullptr;
}

}  // namespace needle::NEEDLE_ISA
