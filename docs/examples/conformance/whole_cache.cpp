// A whole cache in C++ under test: c++ -std=c++17 -O2 whole_cache.cpp -o whole_cache, then
// kvlab conformance run --exec ./whole_cache --target full.whole_cache (or streaming_llm, h2o).
//
// Called as: whole_cache TARGET INPUT OUTPUT, as keep_set.cpp is. The input names the directory of the
// model. Every sequence is computed alone, without its padding; a beam is a copy of a sequence.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

using Vector = std::vector<float>;
const int not_implemented = 77;

std::string read(const std::string &path) {
  std::ifstream in(path, std::ios::binary);
  return {(std::istreambuf_iterator<char>(in)), {}};
}

// A safetensors file, or config.json, whose header is small and of a known form.
struct File {
  std::string content, header;
  const char *data;

  explicit File(const std::string &path, bool json = false) : content(read(path)) {
    uint64_t length = json ? content.size() : 0;
    if (!json) std::memcpy(&length, content.data(), 8);
    header = content.substr(json ? 0 : 8, length);
    data = content.data() + 8 + length;
  }
  bool has(const std::string &name) const { return header.find("\"" + name + "\":") != std::string::npos; }
  const char *find(const std::string &name) const {
    size_t at = header.find("\"" + name + "\":");
    if (at == std::string::npos) throw std::runtime_error("no " + name + " in the header");
    return header.c_str() + at + name.size() + 3;
  }
  double number(const std::string &name) const {
    const char *text = find(name);
    while (*text == '"' || *text == ' ') text++;
    return std::strtod(text, nullptr);  // 0 for "none"
  }
  std::string word(const std::string &name) const {
    const char *text = find(name) + 1;
    return {text, std::strchr(text, '"')};
  }
  template <class T> const T *array(const std::string &name) const {
    const char *list = std::strchr(std::strstr(find(name), "data_offsets"), '[') + 1;
    return reinterpret_cast<const T *>(data + std::strtoull(list, nullptr, 10));
  }
  size_t length(const std::string &name) const {  // of the first axis
    return std::strtoull(std::strchr(std::strstr(find(name), "shape"), '[') + 1, nullptr, 10);
  }
};

struct Entry {
  int64_t position;
  float sum;  // attention received so far: H2O
  Vector key, value;
};
using Layer = std::vector<std::vector<Entry>>;  // one list of entries per KV head
struct Sequence {
  std::vector<Layer> layers;
  int64_t seen = 0, prompt = 0;
};

struct Model {
  File config, weights;
  int layers, width, heads, kv_heads, d, inner, vocab;
  float eps, theta;

  explicit Model(const std::string &folder)
      : config(folder + "/config.json", true), weights(folder + "/model.safetensors") {
    layers = config.number("num_hidden_layers"), width = config.number("hidden_size");
    heads = config.number("num_attention_heads"), kv_heads = config.number("num_key_value_heads");
    d = config.number("head_dim"), inner = config.number("intermediate_size");
    vocab = config.number("vocab_size"), eps = config.number("rms_norm_eps");
    theta = config.number("rope_theta");
  }
  Vector times(const std::string &name, const Vector &x, int rows) const {
    const float *weight = weights.array<float>(name);
    Vector y(rows);
    for (int i = 0; i < rows; i++)
      for (size_t j = 0; j < x.size(); j++) y[i] += weight[i * x.size() + j] * x[j];
    return y;
  }
  Vector norm(const std::string &name, const Vector &x) const {
    const float *weight = weights.array<float>(name);
    float squares = 0;
    for (float each : x) squares += each * each;
    float scale = 1 / std::sqrt(squares / x.size() + eps);
    Vector y(x.size());
    for (size_t i = 0; i < x.size(); i++) y[i] = x[i] * scale * weight[i];
    return y;
  }
  // Rotate each head's halves by its absolute position: the tokens seen, not the entries kept.
  void rotate(float *x, int64_t position) const {
    for (int i = 0; i < d / 2; i++) {
      float angle = position * std::pow(theta, -2.0f * i / d), a = x[i], b = x[i + d / 2];
      x[i] = a * std::cos(angle) - b * std::sin(angle);
      x[i + d / 2] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
};

struct Case {
  std::string method;
  int budget, recent, sinks, every, window;
  float softcap;
  const float *learned_sinks;
};

// Attention of one query head; adds what every entry received to `received`.
Vector attend(const Model &model, const Case &given, const float *query, int64_t position, bool slides,
              const std::vector<Entry> &entries, const float *sink, Vector &received) {
  Vector weights(entries.size(), -INFINITY);
  float largest = sink ? *sink : -INFINITY, total = 0;
  for (size_t j = 0; j < entries.size(); j++) {
    if (entries[j].position > position) continue;
    if (slides && entries[j].position <= position - given.window) continue;
    float dot = 0;
    for (int c = 0; c < model.d; c++) dot += query[c] * entries[j].key[c];
    dot /= std::sqrt(float(model.d));
    if (given.softcap) dot = given.softcap * std::tanh(dot / given.softcap);
    weights[j] = dot, largest = std::max(largest, dot);
  }
  for (float &each : weights) each = std::exp(each - largest), total += each;
  if (sink) total += std::exp(*sink - largest);
  Vector output(model.d);
  for (size_t j = 0; j < entries.size(); j++) {
    received[j] += weights[j] / total * model.kv_heads / model.heads;
    for (int c = 0; c < model.d; c++) output[c] += weights[j] / total * entries[j].value[c];
  }
  return output;
}

// After a block: the newest or heaviest entries stay. Entries lie in ascending position.
void evict(const Case &given, std::vector<Entry> &entries) {
  while (given.budget && entries.size() > size_t(given.budget)) {
    size_t first = given.method == "streaming_llm" ? given.sinks : 0, last = entries.size();
    size_t worst = first;
    if (given.method == "h2o")
      for (size_t j = 0; j < last - given.recent; j++)
        if (entries[j].sum < entries[worst].sum) worst = j;
    entries.erase(entries.begin() + worst);
  }
}

// Every block of the prompt decides; of later ones those that reach or pass a multiple of `every`.
bool due(const Case &given, const Sequence &sequence, int m) {
  int64_t before = sequence.seen - sequence.prompt, after = before + m;
  return after <= 0 || after / given.every > before / given.every;
}

// Feed a block to one sequence; return the logits after its last token.
Vector feed(const Model &model, const Case &given, Sequence &sequence, const int64_t *tokens, int m) {
  std::vector<Vector> hidden(m);
  const float *embedding = model.weights.array<float>("model.embed_tokens.weight");
  for (int i = 0; i < m; i++)
    hidden[i].assign(embedding + tokens[i] * model.width, embedding + (tokens[i] + 1) * model.width);
  int d = model.d, rho = model.heads / model.kv_heads;
  for (int layer = 0; layer < model.layers; layer++) {
    std::string prefix = "model.layers." + std::to_string(layer) + ".";
    bool slides = given.window && layer % 2 == 1;
    std::vector<Vector> queries(m);
    for (int i = 0; i < m; i++) {
      Vector x = model.norm(prefix + "input_layernorm.weight", hidden[i]);
      queries[i] = model.times(prefix + "self_attn.q_proj.weight", x, model.heads * d);
      Vector keys = model.times(prefix + "self_attn.k_proj.weight", x, model.kv_heads * d);
      Vector values = model.times(prefix + "self_attn.v_proj.weight", x, model.kv_heads * d);
      for (int h = 0; h < model.heads; h++) model.rotate(&queries[i][h * d], sequence.seen + i);
      for (int g = 0; g < model.kv_heads; g++) {
        float *key = &keys[g * d], *value = &values[g * d];
        model.rotate(key, sequence.seen + i);
        sequence.layers[layer][g].push_back({sequence.seen + i, 0, {key, key + d}, {value, value + d}});
      }
    }
    std::vector<Vector> joined(m, Vector(model.heads * d));
    for (int g = 0; g < model.kv_heads; g++) {
      std::vector<Entry> &entries = sequence.layers[layer][g];
      Vector received(entries.size());
      for (int i = 0; i < m; i++)
        for (int h = g * rho; h < (g + 1) * rho; h++) {
          const float *sink = given.learned_sinks ? given.learned_sinks + layer * model.heads + h : nullptr;
          Vector output = attend(model, given, &queries[i][h * d], sequence.seen + i, slides, entries,
                                 sink, received);
          std::copy(output.begin(), output.end(), joined[i].begin() + h * d);
        }
      for (size_t j = 0; j < entries.size(); j++) entries[j].sum += received[j];
      if (!slides && due(given, sequence, m)) evict(given, entries);
    }
    for (int i = 0; i < m; i++) {
      Vector more = model.times(prefix + "self_attn.o_proj.weight", joined[i], model.width);
      for (int c = 0; c < model.width; c++) hidden[i][c] += more[c];
      Vector x = model.norm(prefix + "post_attention_layernorm.weight", hidden[i]);
      Vector gate = model.times(prefix + "mlp.gate_proj.weight", x, model.inner);
      Vector up = model.times(prefix + "mlp.up_proj.weight", x, model.inner);
      for (int c = 0; c < model.inner; c++) up[c] *= gate[c] / (1 + std::exp(-gate[c]));
      more = model.times(prefix + "mlp.down_proj.weight", up, model.width);
      for (int c = 0; c < model.width; c++) hidden[i][c] += more[c];
    }
  }
  sequence.seen += m;
  Vector last = model.norm("model.norm.weight", hidden[m - 1]);
  return model.times("model.embed_tokens.weight", last, model.vocab);
}

int main(int count, char **words) {
  if (count != 4) return 1;
  std::string target = words[1], method = target.substr(0, target.find('.'));
  bool known = method == "full" || method == "streaming_llm" || method == "h2o";
  if (!known || target != method + ".whole_cache") return not_implemented;
  File in(words[2]);
  Model model(in.word("model"));
  bool paged = in.has("page") && in.number("page") != 1;
  bool shared = in.has("kv_heads") && in.word("kv_heads") != "head";
  bool coded = in.has("precision") && in.word("precision") != "full";
  if (paged || shared || coded) return not_implemented;
  auto option = [&](const char *name) { return in.has(name) ? in.number(name) : 0; };
  Case given{method, int(option("budget")), int(option("recent")), int(option("sinks")),
             std::max(1, int(option("every"))), int(option("sliding_window")), float(option("softcap")),
             in.has("learned_sinks") ? in.array<float>("learned_sinks") : nullptr};
  int64_t N = in.length("padding"), k = in.length("calls"), t = 0, first = 0;
  const int64_t *tokens = in.array<int64_t>("tokens"), *padding = in.array<int64_t>("padding");
  const int64_t *calls = in.array<int64_t>("calls"), *continues = in.array<int64_t>("continues");
  for (int64_t c = 0; c < k; c++) t += calls[c];

  std::vector<Sequence> rows(N);
  for (int64_t n = 0; n < N; n++) {
    rows[n].layers.assign(model.layers, Layer(model.kv_heads));
    rows[n].prompt = calls[0] - padding[n];
  }
  Vector logits;
  std::vector<uint8_t> kept;
  for (int64_t c = 0; c < k; first += calls[c++]) {
    std::vector<Sequence> before = rows;
    int64_t last = first + calls[c], size = option("block_size") ? option("block_size") : calls[c];
    for (int64_t n = 0; n < N; n++) {
      rows[n] = before[continues[c * N + n]];
      Vector after;
      for (int64_t start = std::max(first, padding[n]); start < last; start += size)
        after = feed(model, given, rows[n], tokens + n * t + start, std::min(size, last - start));
      logits.insert(logits.end(), after.begin(), after.end());
      for (const Layer &layer : rows[n].layers)
        for (const std::vector<Entry> &entries : layer) {
          size_t base = kept.size();
          kept.resize(base + t);
          for (const Entry &entry : entries) kept[base + entry.position] = 1;
        }
    }
  }

  auto shape = [&](std::vector<int64_t> axes) {
    std::string text;
    for (int64_t axis : axes) text += (text.empty() ? "" : ",") + std::to_string(axis);
    return text;
  };
  size_t bytes = 4 * logits.size();
  std::string out = "{\"logits\":{\"dtype\":\"F32\",\"shape\":[" + shape({k, N, model.vocab}) +
                    "],\"data_offsets\":[0," + std::to_string(bytes) + "]},\"kept\":{\"dtype\":\"BOOL\",\"shape\":[" +
                    shape({k, N, model.layers, model.kv_heads, t}) + "],\"data_offsets\":[" +
                    std::to_string(bytes) + "," + std::to_string(bytes + kept.size()) + "]}}";
  uint64_t size = out.size();
  std::ofstream made(words[3], std::ios::binary);
  made.write(reinterpret_cast<char *>(&size), 8);
  made << out;
  made.write(reinterpret_cast<char *>(logits.data()), bytes);
  made.write(reinterpret_cast<char *>(kept.data()), kept.size());
}
