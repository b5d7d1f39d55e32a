# %% 1
# - In row i, i entries share a weight of 1. If they are exchangeable, each gets 1/i on average.
# - Entry j is seen by the rows j to n.
from fractions import Fraction
def expected_score(n, j):
    return sum((Fraction(1, i) for i in range(j, n + 1)), Fraction(0))
# check
assert [expected_score(4, j) for j in (1, 2, 3, 4)] == [
    Fraction(25, 12),
    Fraction(13, 12),
    Fraction(7, 12),
    Fraction(1, 4),
]

# %% 2
# - Divide each expected sum by the number of rows that saw the entry.
# - Are the four means equal?
means = [expected_score(4, j) / (4 - j + 1) for j in range(1, 5)]
gone = len(set(means)) == 1
# check
assert means == [Fraction(25, 48), Fraction(13, 36), Fraction(7, 24), Fraction(1, 4)]
assert gone is False
