/**
 * A decoder of the Llama family; as reference/transformer.py.
 *
 * Reads `config.json` and safetensors of a Hugging Face directory and computes in float64. Attention
 * over the cache is the caller's: `forward` hands queries, keys and values over.
 */

import { dot } from "./attention.mjs";

/** Sizes and switches of a model; throws if the configuration asks for something that is not here. */
export function readConfig(config) {
  const rope = config.rope_parameters ?? config.rope_scaling ?? {};
  const needed = {
    model_type: [config.model_type, "llama"],
    hidden_act: [config.hidden_act ?? "silu", "silu"],
    attention_bias: [config.attention_bias ?? false, false],
    mlp_bias: [config.mlp_bias ?? false, false],
    rope_type: [rope.rope_type ?? rope.type ?? "default", "default"],
  };
  for (const [name, [found, allowed]] of Object.entries(needed)) {
    if (found !== allowed) throw new RangeError(`${name} = ${found} must be ${allowed}`);
  }
  const heads = config.num_attention_heads;
  return {
    vocabSize: config.vocab_size,
    layers: config.num_hidden_layers,
    heads,
    kvHeads: config.num_key_value_heads ?? heads,
    headDim: config.head_dim ?? config.hidden_size / heads,
    normEps: config.rms_norm_eps ?? 1e-6,
    theta: rope.rope_theta ?? config.rope_theta ?? 10000,
    tiedEmbeddings: config.tie_word_embeddings ?? false,
    end: Array.isArray(config.eos_token_id) ? config.eos_token_id[0] : config.eos_token_id ?? null,
  };
}

/** A decoder and its weights, by their names in the checkpoint. */
export class Transformer {
  constructor(config, tensors) {
    this.config = config;
    this.weights = tensors;
    const { headDim, theta } = config;
    this.inverseFrequencies = Float32Array.from({ length: headDim / 2 }, (_, pair) => theta ** (-2 * pair / headDim));
  }

  /** Run a block of tokens through all layers and return the logits after the last of them. */
  forward(tokens, firstPosition, attend) {
    const { config } = this;
    if (!tokens.length || tokens.some((token) => !(token >= 0 && token < config.vocabSize))) {
      throw new RangeError(`token ids must be between 0 and ${config.vocabSize - 1}`);
    }
    const positions = tokens.map((_, i) => firstPosition + i);
    let hidden = tokens.map((token) => Float64Array.from(this.row("model.embed_tokens", token)));
    for (let layer = 0; layer < config.layers; layer++) {
      const prefix = `model.layers.${layer}.`;
      const x = hidden.map((vector) => this.norm(vector, `${prefix}input_layernorm`));
      hidden = added(hidden, this.attention(layer, x, positions, attend));
      const y = hidden.map((vector) => this.norm(vector, `${prefix}post_attention_layernorm`));
      hidden = added(hidden, y.map((vector) => this.mlp(`${prefix}mlp.`, vector)));
    }
    const last = this.norm(hidden[hidden.length - 1], "model.norm");
    return this.linear(config.tiedEmbeddings ? "model.embed_tokens" : "lm_head", last);
  }

  /** Turn a vector by a number of positions (RoPE); negative numbers turn back. */
  rotate(vector, position) {
    const half = vector.length / 2, turned = new Float64Array(vector.length);
    for (let pair = 0; pair < half; pair++) {
      // Models are trained with angles in float32, whatever precision the rest is computed in.
      const angle = Math.fround(Math.fround(position) * this.inverseFrequencies[pair]);
      const cos = Math.cos(angle), sin = Math.sin(angle), first = vector[pair], second = vector[half + pair];
      turned[pair] = first * cos - second * sin;
      turned[half + pair] = second * cos + first * sin;
    }
    return turned;
  }

  /** Attention of one layer; `attend(layer, queries[h][i], keys[g][i], values[g][i])` returns `[h][i]`. */
  attention(layer, x, positions, attend) {
    const { heads, kvHeads } = this.config, prefix = `model.layers.${layer}.self_attn.`;
    const turned = (vectors) => vectors.map((head) => head.map((vector, i) => this.rotate(vector, positions[i])));
    const queries = turned(this.heads(`${prefix}q_proj`, x, heads));
    const keys = turned(this.heads(`${prefix}k_proj`, x, kvHeads));
    const output = attend(layer, queries, keys, this.heads(`${prefix}v_proj`, x, kvHeads));
    return x.map((_, i) => this.linear(`${prefix}o_proj`, joined(output.map((head) => head[i]))));
  }

  /** Project every token and split the result into heads: `[h][i]`. */
  heads(name, x, count) {
    const projected = x.map((vector) => this.linear(name, vector)), d = this.config.headDim;
    return Array.from({ length: count }, (_, h) => projected.map((vector) => vector.slice(h * d, (h + 1) * d)));
  }

  mlp(prefix, x) {
    const gate = this.linear(`${prefix}gate_proj`, x), up = this.linear(`${prefix}up_proj`, x);
    return this.linear(`${prefix}down_proj`, gate.map((g, c) => g / (1 + Math.exp(-g)) * up[c]));
  }

  linear(name, x) {
    const { shape: [outputs], data } = this.weights[`${name}.weight`];
    return product(data, outputs, x);
  }

  norm(x, name) {
    const scale = Math.sqrt(dot(x, x) / x.length + this.config.normEps), { data } = this.weights[`${name}.weight`];
    return x.map((element, c) => element / scale * data[c]);
  }

  /** A row of a matrix. */
  row(name, index) {
    const { shape: [, width], data } = this.weights[`${name}.weight`];
    return data.subarray(index * width, (index + 1) * width);
  }
}

/** Matrix times vector; four sums at once, since a processor adds to one sum only as fast as it can add. */
function product(matrix, outputs, x) {
  const width = x.length, even = width - width % 4, result = new Float64Array(outputs);
  for (let output = 0; output < outputs; output++) {
    const row = output * width;
    let a = 0, b = 0, c = 0, d = 0;
    for (let column = 0, at = row; column < even; column += 4, at += 4) {
      a += matrix[at] * x[column];
      b += matrix[at + 1] * x[column + 1];
      c += matrix[at + 2] * x[column + 2];
      d += matrix[at + 3] * x[column + 3];
    }
    for (let column = even; column < width; column++) a += matrix[row + column] * x[column];
    result[output] = a + b + c + d;
  }
  return result;
}

/** Add vectors pairwise. */
function added(a, b) {
  return a.map((vector, i) => vector.map((x, c) => x + b[i][c]));
}

/** Put vectors one behind the other. */
function joined(vectors) {
  const whole = new Float64Array(vectors.reduce((sum, vector) => sum + vector.length, 0));
  vectors.forEach((vector, place) => whole.set(vector, place * vector.length));
  return whole;
}
