# %% 1
# - In row i, i entries share a weight of 1. If they are exchangeable, each gets 1/i on average.
# - Entry j is seen by the rows j to n.
from fractions import Fraction
def expected_score(n, j):
    return sum((Fraction(1, i) for i in range(j, n + 1)), Fraction(0))
# check
right = Fraction(25, 12), Fraction(13, 12), Fraction(7, 12), Fraction(1, 4)
for j, sum_of_rows in enumerate(right, start=1):
    found = expected_score(4, j)
    told = f"For n = 4 and j = {j} you get {found}"
    assert isinstance(found, Fraction), f"{told}, which is no Fraction"
    assert found == sum_of_rows, f"{told}, too {'little' if found < sum_of_rows else 'much'}"

# %% 2
# - Divide each expected sum by the number of rows that saw the entry.
# - Are the four means equal?
means = [expected_score(4, j) / (4 - j + 1) for j in range(1, 5)]
gone = len(set(means)) == 1
# check
assert np.size(means) == 4, f"{np.size(means)} means for 4 positions"
right = Fraction(25, 48), Fraction(13, 36), Fraction(7, 24), Fraction(1, 4)
for j, (found, mean) in enumerate(zip(means, right), start=1):
    size = "low" if found < mean else "high"
    assert abs(found - mean) < 1e-9, f"The mean of position {j} is {found}, which is too {size}"
assert gone in (True, False), f"gone is {gone!r}, neither True nor False"
assert not gone, f"The means are right: {', '.join(map(str, means))}. Compare them once more"
