(* AhaKV (arXiv 2506.03762, as a public summary states it): Eq. 4, 5 and 12. Positions and rows
   begin at 1, as there. *)
Require Import Reals Lra Lia.
From Coquelicot Require Import Coquelicot.
Open Scope R_scope.

Section accumulated.
(* Attention a i j of row i to position j is random: a number for each outcome. Of the expectation E
   we use that it is additive, and that the expectation of 1 is 1. *)
Variable outcome : Type.
Variable E : (outcome -> R) -> R.
Hypothesis E_same : forall f g, (forall o, f o = g o) -> E f = E g.
Hypothesis E_sum : forall f g, E (fun o => f o + g o) = E f + E g.
Hypothesis E_one : E (fun _ => 1) = 1.

Variable a : nat -> nat -> outcome -> R.
Hypothesis row_sums_to_1 : forall i o, (1 <= i)%nat -> sum_n_m (fun j => a i j o) 1 i = 1.
(* Exchangeable logits: no position of a row is expected to get more than another. *)
Hypothesis exchangeable : forall i j k,
  (1 <= j <= i)%nat -> (1 <= k <= i)%nat -> E (a i j) = E (a i k).

Variables n r : nat.
Definition accumulated (j : nat) (o : outcome) : R := sum_n_m (fun i => a i j o) j n.
Definition recent (j : nat) (o : outcome) : R := sum_n_m (fun i => a i j o) (n - r + 1) n.

Lemma E_of_sum (f : nat -> outcome -> R) (first last : nat) : (first <= last)%nat ->
  E (fun o => sum_n_m (fun i => f i o) first last) = sum_n_m (fun i => E (f i)) first last.
Proof.
  intros H. induction last as [|m IH].
  - replace first with 0%nat by lia. rewrite sum_n_n.
    apply E_same. intros o. exact (sum_n_n (fun i => f i o) 0).
  - destruct (Nat.eq_dec first (S m)) as [->|].
    + rewrite sum_n_n. apply E_same. intros o. exact (sum_n_n (fun i => f i o) (S m)).
    + rewrite sum_n_Sm, <- IH, <- E_sum by lia. apply E_same. intros o.
      exact (sum_n_Sm (fun i => f i o) first m ltac:(lia)).
Qed.

Lemma expected_attention i j : (1 <= j <= i)%nat -> E (a i j) = / INR i.
Proof.
  intros H. assert (total : INR i * E (a i j) = 1).
  { rewrite <- E_one, <- (E_same _ _ (fun o => row_sums_to_1 i o ltac:(lia))), E_of_sum by lia.
    rewrite (sum_n_m_ext_loc _ (fun _ => E (a i j)) 1 i)
      by (intros k Hk; apply exchangeable; lia).
    rewrite sum_n_m_const. f_equal. f_equal. lia. }
  apply (Rmult_eq_reg_l (INR i)); [rewrite total; symmetry; apply Rinv_r|]; apply not_0_INR; lia.
Qed.

(* Paper: Mechanism 2, Eq. 4, every n
   Claims: AK-1
   About: kvlab.reference.methods.h2o.AccumulatedAttention
   Python: expected_h2o(k + 1) - expected_h2o(k) == -1 / k *)
Theorem accumulated_attention_falls (j : nat) : (1 <= j < n)%nat ->
  E (accumulated (j + 1)) - E (accumulated j) = - / INR j.
Proof.
  intros H. unfold accumulated. rewrite !E_of_sum by lia.
  rewrite (sum_Sn_m (fun i => E (a i j))) by lia. unfold plus; simpl.
  replace (S j) with (j + 1)%nat by lia.
  rewrite (sum_n_m_ext_loc _ (fun i => / INR i)) by (intros i Hi; apply expected_attention; lia).
  rewrite (sum_n_m_ext_loc (fun i => E (a i j)) (fun i => / INR i))
    by (intros i Hi; apply expected_attention; lia).
  rewrite expected_attention by lia. ring.
Qed.

(* Paper: Mechanism 2, Eq. 5, every n and r; all candidates are at most n - r + 1
   Claims: AK-2
   About: kvlab.reference.methods.ahakv.SharpenedRecentAttention.accumulated
   Python: expected_recent(1) == expected_recent(n - r + 1) *)
Theorem recent_rows_favour_no_position (j k : nat) :
  (1 <= r <= n)%nat -> (1 <= j <= n - r + 1)%nat -> (1 <= k <= n - r + 1)%nat ->
  E (recent j) = E (recent k).
Proof.
  intros Hr Hj Hk. unfold recent. rewrite !E_of_sum by lia.
  apply sum_n_m_ext_loc. intros i Hi. apply exchangeable; lia.
Qed.
End accumulated.

(* Paper: Mechanism 2, Eq. 5, refuted as printed: the sum over i = n − r … n has r + 1 rows, not r
   Claims: AK-2b
   About: kvlab.reference.windows.remember_queries
   Python: rows_summed == r == len(range(n - r + 1, n + 1)); len(range(n - r, n + 1)) == r + 1 *)
Theorem printed_sum_has_another_row (n r : nat) : (r <= n)%nat ->
  sum_n_m (fun _ => 1) (n - r) n = INR r + 1 /\
  ((1 <= r)%nat -> sum_n_m (fun _ => 1) (n - r + 1) n = INR r).
Proof.
  intros H. rewrite !sum_n_m_const. split; [|intros Hr].
  - replace (S n - (n - r))%nat with (S r) by lia. rewrite S_INR. apply Rmult_1_r.
  - replace (S n - (n - r + 1))%nat with r by lia. apply Rmult_1_r.
Qed.

(* Paper: Mechanism 1, Eq. 12: λ brings log i − λ²d/2 to log k, and no other positive λ does
   Claims: AK-4
   About: kvlab.reference.methods.ahakv.SharpenedRecentAttention.factors
   Python: gain == sqrt(2 * log(n / k) / d) * sqrt(d); log(n) - (gain / sqrt(d)) ** 2 * d / 2
           == log(k) *)
Theorem lambda_is_the_only_solution (i k d lambda : R) :
  0 < k < i -> 0 < d -> 0 < lambda ->
  ln i - lambda ^ 2 * d / 2 = ln k <-> lambda = sqrt (2 * ln (i / k) / d).
Proof.
  intros [Hk Hi] Hd Hl.
  assert (log : ln (i / k) = ln i - ln k).
  { unfold Rdiv. rewrite ln_mult, ln_Rinv; try lra. apply Rinv_0_lt_compat, Hk. }
  assert (0 < 2 * ln (i / k) / d).
  { apply Rdiv_lt_0_compat; [|exact Hd]. assert (ln k < ln i) by (apply ln_increasing; lra). lra. }
  split; intros E.
  - rewrite <- (sqrt_pow2 lambda) at 1 by lra. f_equal. rewrite log, <- E. field. lra.
  - rewrite E, pow2_sqrt, log by lra. field. lra.
Qed.
