(* LazyEviction (arXiv 2506.15969): the size of the cache, the interval of Eq. 1, and H2. *)
Require Import Reals Lra Lia Bool List.
From Coquelicot Require Import Coquelicot.
Import ListNotations.

(* Entries after generated token t and the eviction at its end: every W tokens, if [evicts] says so
   of the number of entries and the budget B, at most B entries stay. *)
Fixpoint size (prompt B W : nat) (evicts : nat -> nat -> bool) (t : nat) : nat :=
  match t with
  | O => prompt
  | S s =>
      let n := S (size prompt B W evicts s) in
      if (t mod W =? 0)%nat && evicts n B then Nat.min n B else n
  end.
Definition above_budget (n B : nat) : bool := (B <? n)%nat.  (* §4: |S_t| > B *)
Definition line_8 (n B : nat) : bool := (n <=? B)%nat.  (* Algorithm 1, line 8: B ≥ |K| *)

Section bound.
Variables prompt B W : nat.
Hypothesis window : (1 <= W)%nat.
Notation size := (size prompt B W above_budget).

Lemma one_token_later t : (S t mod W = 0 \/ S t mod W = S (t mod W))%nat.
Proof.
  assert (H := Nat.mod_upper_bound t W ltac:(lia)). assert (D := Nat.div_mod t W ltac:(lia)).
  replace (S t) with (S (t mod W) + t / W * W)%nat by lia. rewrite Nat.mod_add by lia.
  destruct (Nat.eq_dec (S (t mod W)) W) as [->|]; [left; apply Nat.mod_same; lia|].
  right. apply Nat.mod_small. lia.
Qed.

Lemma size_between_evictions t : (size t <= Nat.max prompt B + t mod W)%nat.
Proof.
  induction t as [|t IH]; [simpl; lia|]. cbn [kvlab.lazy_eviction.size].
  unfold above_budget at 1. destruct (one_token_later t) as [E|E]; rewrite E.
  - destruct (Nat.ltb_spec B (S (size t))); cbn [andb Nat.eqb]; lia.
  - simpl. lia.
Qed.

(* Paper: §4, evicting every W steps where |S_t| > B: every prompt, B, W and step t
   Claims: LE-4
   About: kvlab.reference.policy.EveryDecode
   Python: held == sizes[:-1] + 1; max(held) <= max(prompt, B) + W *)
Theorem cache_stays_within_budget_and_window t : (S (size t) <= Nat.max prompt B + W)%nat.
Proof.
  assert (H := Nat.mod_upper_bound t W ltac:(lia)).
  assert (H' := size_between_evictions t). lia.
Qed.

(* Paper: §4: the budget is kept after every eviction, once W tokens are generated
   Claims: LE-4
   About: kvlab.reference.policy.EveryDecode
   Python: left == sizes[1:]; max(left[W - 1 :: W]) <= B *)
Theorem budget_is_kept k : (1 <= k)%nat -> (size (k * W) <= B)%nat.
Proof.
  intros H. assert (M := Nat.mod_mul k W ltac:(lia)). assert (P : (k * W <> 0)%nat) by nia.
  destruct (k * W)%nat as [|t]; [contradiction|]. cbn [kvlab.lazy_eviction.size]. rewrite M.
  unfold above_budget at 1. destruct (Nat.ltb_spec B (S (size t))); cbn [andb Nat.eqb]; lia.
Qed.
End bound.

(* Paper: Algorithm 1, line 8, refuted as printed: it evicts while B ≥ |K|, where all entries fit, so
          no entry is ever evicted, whatever the prompt and B, and the cache grows beyond any number
   Claims: LE-4b
   About: kvlab.reference.proofs.lazy_eviction.sizes
   Python: of_line_8 == prompts + tokens *)
Theorem line_8_never_evicts prompt B W :
  (forall t, size prompt B W line_8 t = prompt + t)%nat /\
  (forall bound, exists t, bound < size prompt B W line_8 t)%nat.
Proof.
  assert (grows : forall t, size prompt B W line_8 t = (prompt + t)%nat).
  { induction t as [|t IH]; [simpl; lia|]. cbn [size]. rewrite IH. unfold line_8.
    destruct (_ =? _)%nat, (Nat.leb_spec (S (prompt + t)) B); cbn [andb]; lia. }
  split; [exact grows|]. intros bound. exists (S bound). rewrite grows. lia.
Qed.

Open Scope R_scope.
Definition sigma (x : R) : R := 1 / (1 + exp (- x)).  (* §4, H1-score *)
Definition H2 (MRI : R) : R := 2 * sigma (- (1 / (MRI - 1))).  (* §4, as printed *)
Definition H2_of_the_code (MRI : R) : R := 2 * sigma (- (MRI - 1)).

Lemma sigma_rises x y : x < y -> sigma x < sigma y.
Proof.
  intros H. unfold sigma, Rdiv. rewrite !Rmult_1_l.
  assert (0 < exp (- y)) by apply exp_pos. assert (0 < exp (- x)) by apply exp_pos.
  apply Rinv_lt_contravar; [apply Rmult_lt_0_compat; lra|].
  apply Rplus_lt_compat_l, exp_increasing. lra.
Qed.

(* Paper: §4, H2-score, refuted as printed: tokens with smaller MRI are to be rated higher, but H2
          rises with MRI, strictly and everywhere beyond 1
   Claims: LE-1
   About: kvlab.reference.methods.lazy_eviction.Recurrence.interval_score
   Python: printed(m) == 2 / (1 + exp(1 / (m - 1))); printed(m) < printed(m + 1) *)
Theorem printed_h2_rises m1 m2 : 1 < m1 < m2 -> H2 m1 < H2 m2.
Proof.
  intros H. unfold H2. apply Rmult_lt_compat_l; [lra|]. apply sigma_rises.
  apply Ropp_lt_contravar. unfold Rdiv. rewrite !Rmult_1_l.
  apply Rinv_lt_contravar; [apply Rmult_lt_0_compat|]; lra.
Qed.

(* Paper: §4 and Appendix D, H2-score, in the authors' code: it falls, from 1 at MRI = 1, above 0
   Claims: LE-1
   About: kvlab.reference.methods.lazy_eviction.Recurrence.interval_score
   Python: code(m) == 2 / (1 + exp(m - 1)); code(1.0) == 1; 0 < code(m + 1) < code(m) *)
Theorem h2_of_the_code_falls m1 m2 : 1 <= m1 < m2 ->
  H2_of_the_code 1 = 1 /\ 0 < H2_of_the_code m2 < H2_of_the_code m1.
Proof.
  intros H. unfold H2_of_the_code. repeat split.
  - unfold sigma. replace (- - (1 - 1)) with 0 by ring. rewrite exp_0. field.
  - apply Rmult_lt_0_compat; [lra|]. unfold sigma, Rdiv. rewrite Rmult_1_l.
    apply Rinv_0_lt_compat. assert (0 < exp (- - (m2 - 1))) by apply exp_pos. lra.
  - apply Rmult_lt_compat_l; [lra|]. apply sigma_rises. lra.
Qed.
