/** What twenty programs can tell: an interval of a share, and a test of pairs. */

const Z = 1.959963984540054; // standard deviations of a 95 % interval

/** Wilson's 95 % interval of a share, `[low, high]`. */
export function wilson(yes, trials) {
  const share = yes / trials, centre = share + Z ** 2 / (2 * trials), scale = 1 + Z ** 2 / trials;
  const spread = Z * Math.sqrt(share * (1 - share) / trials + Z ** 2 / (4 * trials ** 2));
  return [Math.max(0, Math.min(share, (centre - spread) / scale)), Math.min(1, Math.max(share, (centre + spread) / scale))];
}

/** Two-sided exact sign test: how likely a split at least as uneven is if both sides are alike. */
export function signTest(one, other) {
  const trials = one + other;
  let ways = 1, tail = 0;
  for (let count = 0; count <= Math.min(one, other); count++) {
    tail += ways;
    ways *= (trials - count) / (count + 1);
  }
  return Math.min(1, 2 * tail / 2 ** trials);
}
