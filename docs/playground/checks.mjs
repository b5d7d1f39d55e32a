/** Checks of arguments: every error names the argument, its value and what is allowed. */

/** Throw unless every argument is a number of at least `least`. */
export function checkAtLeast(least, given) {
  for (const [name, value] of Object.entries(given)) {
    if (!(typeof value === "number" && value >= least)) {
      throw new RangeError(`${name} = ${value} must be at least ${least}`);
    }
  }
}

/** Throw unless every argument is among those allowed. */
export function checkChoice(allowed, given) {
  for (const [name, value] of Object.entries(given)) {
    if (!allowed.includes(value)) throw new RangeError(`${name} = ${value} must be one of ${allowed.join(", ")}`);
  }
}

/** Throw unless a pooling kernel has a centre. */
export function checkKernel(kernel) {
  if (!(Number.isInteger(kernel) && kernel >= 1 && kernel % 2 === 1)) {
    throw new RangeError(`kernel = ${kernel} must be odd and at least 1`);
  }
}

/** Throw if the protected entries alone exceed the budget. */
export function checkProtected(budget, count) {
  if (count > budget) {
    throw new RangeError(`budget = ${budget} must be at least the ${count} entries that are protected`);
  }
}
