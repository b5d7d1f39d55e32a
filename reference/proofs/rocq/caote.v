(* CAOTE (arXiv 2504.14051): Theorems 3.1, 3.2 and B.1, and the three cases of Appendix B.2.
   The paper's b + 1 entries 1 to b + 1 are 0 to b here. *)
Require Import Reals Lra Lia List.
From Coquelicot Require Import Coquelicot.
From kvlab Require Import algebra.
Import ListNotations.
Open Scope R_scope.

Section eviction.
(* A weight per entry: w i is exp(q·k_i) for attention, or the retention score h_i of any method
   (Eq. 20 to 22). Values lie in any normed space: R^d with any norm is one. *)
Context {V : NormedModule R_AbsRing}.
Variables (b : nat) (w : nat -> R) (v : nat -> V).

(* Attention and its output where only the entries stay that [stays] marks. *)
Definition S (stays : nat -> bool) : R := sum_n (among stays w) b.  (* Eq. 13 *)
Definition alpha (stays : nat -> bool) (i : nat) : R := w i / S stays.  (* Eq. 22 for scores h *)
Definition output (stays : nat -> bool) : V :=  (* Eq. 10 and 11 *)
  sum_n (among stays (fun i => scal (alpha stays i) (v i))) b.

Section one.
Variable j : nat.  (* the entry that is evicted *)
Hypothesis present : (j <= b)%nat.
Hypothesis some_mass : S everything <> 0.
Hypothesis others_have_mass : S (without j) <> 0.
Notation "'α' i" := (alpha everything i) (at level 9, i at level 9).
Notation "'α′' i" := (alpha (without j) i) (at level 9, i at level 9).
Notation X := (output everything).
Notation X' := (output (without j)).

Definition score : R := α j / (1 - α j) * norm (minus X (v j)).  (* Eq. 8 and 21 *)
Definition error : R := norm (minus X X').  (* Eq. 9 *)

Lemma equation_14 : S (without j) = S everything - w j.
Proof. exact (sum_without w b j present). Qed.

Lemma remainder : 1 - α j = S (without j) / S everything.
Proof. rewrite equation_14. unfold alpha. field. exact some_mass. Qed.

Lemma remainder_not_zero : 1 - α j <> 0.
Proof.
  rewrite remainder. unfold Rdiv.
  apply Rmult_integral_contrapositive. split; [exact others_have_mass|].
  apply Rinv_neq_0_compat, some_mass.
Qed.

(* Paper: Theorem 3.1, Eq. 12 to 15
   Claims: CA-1
   About: kvlab.reference.attention.softmax
   Python: softmax(logits, stays)[i] == alpha[i] / (1 - alpha[j]) *)
Theorem theorem_3_1 (i : nat) : α′ i = α i / (1 - α j).
Proof.
  rewrite remainder. unfold alpha. field. split; assumption.  (* Eq. 15 *)
Qed.

Lemma equation_18 : X' = scal (/ (1 - α j)) (minus X (scal (α j) (v j))).
Proof.
  transitivity (scal (/ (1 - α j)) (sum_n (among (without j) (fun i => scal (α i) (v i))) b)).
  - (* Eq. 17 *)
    rewrite <- (sum_n_scal_l (K := R_Ring)). apply sum_n_ext. intros i. unfold among.
    destruct (without j i); [|symmetry; exact (scal_zero_r (K := R_Ring) _)].
    rewrite theorem_3_1. vectors [v i]. field. exact remainder_not_zero.
  - f_equal. exact (sum_without (fun i => scal (α i) (v i)) b j present).  (* Eq. 10 and 11 *)
Qed.

(* Paper: Theorem 3.2, Eq. 19, as an equality of vectors
   Claims: CA-2
   About: kvlab.reference.attention.weighted_values
   Python: X - X_j == alpha[j] / (1 - alpha[j]) * (v[j] - X) *)
Theorem change_of_the_output : minus X X' = scal (α j / (1 - α j)) (minus (v j) X).
Proof.
  rewrite equation_18. vectors [X; v j]; field; exact remainder_not_zero.
Qed.

(* Paper: Theorem 3.2, Eq. 8, 9 and 16 to 19, in any norm
   Claims: CA-2, CA-2b
   About: kvlab.reference.methods.caote.eviction_error
   Python: eviction_error(h, v, p)[j] == h[j] / (1 - h[j]) * norm(h @ v - v[j], p) == norm(h @
           v - h_j @ v, p) *)
Theorem theorem_3_2 : 0 <= α j < 1 -> score = error.
Proof.
  intros H. unfold error, score.
  rewrite change_of_the_output, norm_of_multiple.
  f_equal.
  - symmetry. apply Rabs_pos_eq, Rmult_le_pos; [apply H|]. left. apply Rinv_0_lt_compat. lra.
  - rewrite <- norm_opp. f_equal. vectors [X; v j]; ring.
Qed.
End one.

Section several.
Variable evicted : nat -> bool.  (* a whole set E leaves at once *)
Notation stays := (fun i => negb (evicted i)).
Notation "'α' i" := (alpha everything i) (at level 9, i at level 9).
Notation X := (output everything).
Hypothesis some_mass : S everything <> 0.
Hypothesis mass_left : S stays <> 0.
Definition alpha_E : R := sum_n (among evicted (alpha everything)) b.

Lemma scaled_sum {P : ModuleSpace R_AbsRing} (set : nat -> bool) (r : R) (x : nat -> P) :
  sum_n (among set (fun i => scal r (x i))) b = scal r (sum_n (among set x) b).
Proof.
  rewrite <- (sum_n_scal_l (K := R_Ring)). apply sum_n_ext. intros i. unfold among.
  destruct (set i); [reflexivity|symmetry; exact (scal_zero_r (K := R_Ring) r)].
Qed.

Lemma mass_of_the_rest : S stays = S everything * (1 - alpha_E).
Proof.
  assert (E : alpha_E = / S everything * sum_n (among evicted w) b).
  { unfold alpha_E. etransitivity; [|exact (scaled_sum (P := R_ModuleSpace) evicted _ w)].
    apply sum_n_ext. intros i. unfold among.
    destruct (evicted i); [apply Rmult_comm|reflexivity]. }
  rewrite E. unfold S at 1. rewrite (sum_of_the_rest (V := R_ModuleSpace)).
  change (S everything - sum_n (among evicted w) b
    = S everything * (1 - / S everything * sum_n (among evicted w) b)).
  field. exact some_mass.
Qed.

(* Paper: Appendix A, several evictions, which the paper calls non-trivial and leaves out
   Claims: CA-4a
   About: kvlab.reference.methods.caote.joint_error
   Python: joint_error(alpha, v, E) == norm(alpha[E] @ (v[E] - X)) / (1 - alpha[E].sum()) ==
           norm(X - X_E) *)
Theorem change_by_several :
  minus X (output stays)
  = scal (/ (1 - alpha_E)) (sum_n (among evicted (fun i => scal (α i) (minus (v i) X))) b).
Proof.
  assert (1 - alpha_E <> 0).
  { intros E. apply mass_left. rewrite mass_of_the_rest, E. apply Rmult_0_r. }
  set (Y := sum_n (among evicted (fun i => scal (α i) (v i))) b).
  assert (X'_is : output stays = scal (/ (1 - alpha_E)) (minus X Y)).
  { change (minus X Y) with (minus (sum_n (among everything (fun i => scal (α i) (v i))) b) Y).
    unfold Y. rewrite <- sum_of_the_rest, <- scaled_sum. unfold output. apply sum_n_ext. intros i.
    unfold among. destruct (negb (evicted i)); [|reflexivity].
    unfold alpha. rewrite mass_of_the_rest. vectors [v i]. field. split; assumption. }
  rewrite X'_is. transitivity (scal (/ (1 - alpha_E)) (minus Y (scal alpha_E X))).
  - vectors [X; Y]; field; assumption.
  - f_equal. symmetry. exact (sum_of_differences evicted (alpha everything) v X b).
Qed.
End several.
End eviction.

Section attention.
(* With w i = exp(q·k_i) all conditions hold once there are two entries, as in the paper. *)
Context {V : NormedModule R_AbsRing}.
Variables (b : nat) (logit : nat -> R) (v : nat -> V).
Let w i := exp (logit i).

Lemma mass_is_positive (stays : nat -> bool) (i : nat) :
  (i <= b)%nat -> stays i = true -> 0 < S b w stays.
Proof.
  intros H E. apply Rlt_le_trans with (among stays w i).
  - unfold among. rewrite E. apply exp_pos.
  - apply term_of_sum; [|exact H]. intros k. unfold among.
    destruct (stays k); [left; apply exp_pos|apply Rle_refl].
Qed.

(* Paper: Theorem 3.2 for attention, every number of entries from two on, in any norm
   Claims: CA-2b
   About: kvlab.reference.methods.caote.eviction_error
   Python: eviction_error(alpha, v, p)[j] == alpha[j] / (1 - alpha[j]) * norm(X - v[j], p) ==
           norm(X - X_j, p) *)
Theorem theorem_3_2_of_attention (j : nat) : (1 <= b)%nat -> (j <= b)%nat ->
  score b w v j = error b w v j.
Proof.
  intros two present.
  assert (all := mass_is_positive everything j present eq_refl).
  assert (others : 0 < S b w (without j)).
  { destruct j as [|k]; [apply (mass_is_positive _ 1) | apply (mass_is_positive _ 0)];
      reflexivity || lia. }
  assert (r := remainder b w j present (Rgt_not_eq _ _ all)).
  assert (0 < S b w (without j) / S b w everything) by (apply Rdiv_lt_0_compat; assumption).
  apply theorem_3_2; try (apply Rgt_not_eq; assumption); [exact present|].
  split; [|lra]. apply Rlt_le, Rdiv_lt_0_compat; [apply exp_pos|exact all].
Qed.
End attention.

Section theorem_b_1.
(* b + 1 tokens pass the model at once: row i of the attention is a softmax over the tokens 0 to
   i, and 0 beyond (the causal mask). *)
Variables (b : nat) (logit : nat -> nat -> R).
Definition row_sum (i : nat) : R := sum_n (fun j => exp (logit i j)) i.
Definition A (i j : nat) : R := if Nat.leb j i then exp (logit i j) / row_sum i else 0.
Definition h (j : nat) : R := sum_n_m (fun i => A i j) j b.  (* Eq. 28: rows j to b *)

Lemma row_sum_is_positive i : 0 < row_sum i.
Proof.
  apply Rlt_le_trans with (exp (logit i 0)); [apply exp_pos|].
  apply (term_of_sum (fun j => exp (logit i j))); [intros k; left; apply exp_pos|lia].
Qed.

Lemma equation_25 : A 0 0 = 1.
Proof.
  unfold A, row_sum; simpl. rewrite sum_O. field. apply Rgt_not_eq, exp_pos.
Qed.

Lemma equation_26 i j : (i < j)%nat -> A i j = 0.  (* i = 0 in the paper *)
Proof. intros H. unfold A. destruct (Nat.leb_spec j i); [lia|reflexivity]. Qed.

Lemma equation_30 j : (j <= b)%nat -> h j = sum_n (fun i => A i j) b.
Proof.
  intros H. unfold h, sum_n. destruct j as [|j]; [reflexivity|].
  rewrite (sum_n_m_Chasles _ 0 j b) by lia.  (* Eq. 29 *)
  rewrite (sum_n_m_ext_loc _ (fun _ => zero) 0 j), sum_n_m_const_zero.
  - symmetry. apply plus_zero_l.
  - intros i Hi. apply equation_26. lia.
Qed.

Lemma row_adds_1 i : (i <= b)%nat -> sum_n (A i) b = 1.
Proof.
  intros H. transitivity (plus (sum_n (A i) i) (sum_n_m (A i) (Datatypes.S i) b)).
  - unfold sum_n. apply sum_n_m_Chasles; lia.  (* Eq. 33, with i + 1 as its lower limit *)
  - rewrite (sum_n_m_ext_loc (A i) (fun _ => zero) _ b), sum_n_m_const_zero, plus_zero_r
      by (intros j Hj; apply equation_26; lia).
    rewrite (sum_n_ext_loc (A i) (fun j => scal (/ row_sum i) (exp (logit i j)))).
    + rewrite (sum_n_scal_l (K := R_Ring) (V := R_ModuleSpace)).
      apply Rinv_l, Rgt_not_eq, row_sum_is_positive.
    + intros j Hj. unfold A. destruct (Nat.leb_spec j i); [apply Rmult_comm|lia].
Qed.

(* Paper: Theorem B.1, Eq. 24 to 34
   Claims: CA-5
   About: kvlab.reference.methods.h2o.AccumulatedAttention
   Python: h2o.sum() == b + 1 *)
Theorem theorem_b_1 : (1 <= b)%nat -> sum_n h b = INR b + 1 /\ sum_n h b > 1.
Proof.
  intros H.
  assert (total : sum_n h b = INR b + 1).
  { rewrite (sum_n_ext_loc h (fun j => sum_n (fun i => A i j) b)) by exact equation_30.  (* 31 *)
    rewrite <- (sum_n_switch A).  (* Eq. 32 *)
    rewrite (sum_n_ext_loc _ (fun _ => 1)) by exact row_adds_1.  (* Eq. 33 *)
    rewrite sum_n_const, S_INR. apply Rmult_1_r. }  (* Eq. 34 *)
  split; [exact total|]. rewrite total. apply le_INR in H. simpl in H. lra.
Qed.
End theorem_b_1.

Section evictions.
(* H2O while generating: scores h, one per entry, after t tokens and any evictions; gone is the sum
   of the scores that were evicted. A new row of attention is positive and sums to 1. *)
Fixpoint total (h : list R) : R := match h with [] => 0 | x :: rest => x + total rest end.
Fixpoint added (h row : list R) : list R :=
  match h, row with
  | x :: h', y :: row' => x + y :: added h' row'
  | _, _ => row  (* the entry of the new token *)
  end.
Definition is_row (row : list R) (entries : nat) : Prop :=
  length row = entries /\ List.Forall (fun x => 0 < x) row /\ total row = 1.

Inductive reached : list R -> nat -> R -> Prop :=
  | nothing_seen : reached [] 0 0
  | token h t gone row : reached h t gone -> is_row row (Datatypes.S (length h)) ->
      reached (added h row) (Datatypes.S t) gone
  | evict before x after t gone : reached (before ++ x :: after) t gone ->
      reached (before ++ after) t (gone + x).

Lemma total_of_added h row : (length h <= length row)%nat ->
  total (added h row) = total h + total row.
Proof.
  revert row. induction h as [|x h IH]; intros [|y row] H; simpl in *; try lra; try lia.
  rewrite IH by lia. lra.
Qed.

Lemma total_of_app h k : total (h ++ k) = total h + total k.
Proof. induction h as [|x h IH]; simpl; [lra|]. rewrite IH. lra. Qed.

Lemma scores_are_positive h t gone : reached h t gone -> List.Forall (fun x => 0 < x) h.
Proof.
  induction 1 as [|h t gone row _ IH (_ & P & _)|before x after t gone _ IH]; [constructor| |].
  - revert row P. induction IH as [|x h X _ IH']; intros row P; [exact P|].
    inversion P as [E|y rest Y P' E]; subst; simpl; constructor; [lra|apply IH', P'].
  - apply Forall_app in IH. destruct IH as [B A]. apply Forall_app.
    split; [exact B|exact (Forall_inv_tail A)].
Qed.

(* Paper: Theorem B.1 after evictions, of which the paper's proof assumes that there were none
   Claims: CA-5b
   About: kvlab.reference.methods.h2o.AccumulatedAttention
   Python: totals == tokens - gone *)
Theorem scores_after_evictions h t gone : reached h t gone -> total h = INR t - gone.
Proof.
  induction 1 as [|h t gone row _ IH (L & _ & T)|before x after t gone _ IH]; [simpl; lra| |].
  - rewrite total_of_added, S_INR by lia. lra.
  - rewrite total_of_app in *. simpl in IH. lra.
Qed.

(* Paper: §3.2, CAOTE for H2O: while generating, the scores sum to more than 1
   Claims: CA-5b
   About: kvlab.reference.methods.h2o.AccumulatedAttention
   Python: all(totals > 1) *)
Theorem scores_exceed_1_while_generating h t gone row : reached h t gone -> (1 <= length h)%nat ->
  is_row row (Datatypes.S (length h)) -> total (added h row) > 1.
Proof.
  intros H L (R & _ & T). rewrite total_of_added, T by lia.
  assert (0 < total h); [|lra].
  destruct (scores_are_positive h t gone H) as [|x k X K]; simpl in *; [lia|].
  assert (0 <= total k); [|lra]. clear - K. induction K; simpl; lra.
Qed.
End evictions.

Section logits.
(* Appendix B.2. The projections are linear maps between vector spaces; x is X⁰, and A and A' are
   the attention output before and after an eviction, so that minus A' A is Δ_A. *)
Definition linear {P Q : ModuleSpace R_AbsRing} (f : P -> Q) : Prop :=
  (forall y z, f (plus y z) = plus (f y) (f z)) /\ (forall r y, f (scal r y) = scal r (f y)).

Lemma linear_minus {P Q : ModuleSpace R_AbsRing} (f : P -> Q) (y z : P) :
  linear f -> f (minus y z) = minus (f y) (f z).
Proof.
  intros [f_sum f_multiple]. unfold minus.
  rewrite f_sum, !opposite_is_multiple, f_multiple. reflexivity.
Qed.

Context {V U L : ModuleSpace R_AbsRing}.
Variables (W_FFN : U -> U) (W_H : U -> L).
Hypotheses (FFN_linear : linear W_FFN) (H_linear : linear W_H).

Definition logits_1 {O : ModuleSpace R_AbsRing} (W_O : O -> U) (x : U) (A : O) : L :=
  W_H (plus x (W_O A)).  (* Eq. 38 *)
Definition logits_3 (W_O : V -> U) (x : U) (A : V) : L :=
  let half := plus x (W_O A) in W_H (plus half (W_FFN half)).  (* Eq. 43 to 46 *)

(* Paper: Appendix B.2, case 1, Eq. 35 to 42
   Claims: CA-10a
   About: kvlab.reference.attention.weighted_values
   Python: W_H @ (x + W_O @ X_j) - W_H @ (x + W_O @ X) == W_H @ W_O @ (X_j - X) *)
Theorem logit_error_case_1 {O : ModuleSpace R_AbsRing} (W_O : O -> U) (x : U) (A A' : O) :
  linear W_O -> minus (logits_1 W_O x A') (logits_1 W_O x A) = W_H (W_O (minus A' A)).
Proof.
  intros O_linear. unfold logits_1. rewrite (linear_minus W_O), (linear_minus W_H) by assumption.
  rewrite !(proj1 H_linear).  (* Eq. 39 to 41 *)
  vectors [W_H x; W_H (W_O A); W_H (W_O A')]; ring.
Qed.

(* Paper: Appendix B.2, case 2; W_O of the concatenated heads is the sum of the heads' projections
   Claims: CA-10b
   About: kvlab.reference.attention.weighted_values
   Python: W_H @ (x + W_2 @ hstack([X_j, X_E])) - W_H @ (x + W_2 @ hstack([X, X])) == W_H @
           W_2 @ hstack([X_j - X, X_E - X]) *)
Theorem logit_error_case_2 (last : nat) (W_O : nat -> V -> U) (x : U) (A A' : nat -> V) :
  (forall i, linear (W_O i)) ->
  let concatenated (A : nat -> V) := sum_n (fun i => W_O i (A i)) last in
  minus (W_H (plus x (concatenated A'))) (W_H (plus x (concatenated A)))
  = W_H (concatenated (fun i => minus (A' i) (A i))).
Proof.
  intros O_linear concatenated.
  assert (E : concatenated (fun i => minus (A' i) (A i))
    = minus (concatenated A') (concatenated A)).
  { unfold concatenated. induction last as [|n IH].
    - rewrite !sum_O. apply linear_minus, O_linear.
    - rewrite !sum_Sn, IH, (linear_minus (W_O (Datatypes.S n))) by apply O_linear.
      set (p := sum_n _ n). set (q := sum_n _ n).
      set (y := W_O _ (A _)). set (y' := W_O _ (A' _)). vectors [p; q; y; y']; ring. }
  rewrite E, linear_minus, !(proj1 H_linear) by exact H_linear.
  vectors [W_H x; W_H (concatenated A); W_H (concatenated A')]; ring.
Qed.

(* Paper: Appendix B.2, case 3, Eq. 43 to 51
   Claims: CA-10c
   About: kvlab.reference.attention.weighted_values
   Python: W_H @ (y_j + W_FFN @ y_j) - W_H @ (y + W_FFN @ y) == W_H @ (W_O @ (X_j - X) + W_FFN
           @ W_O @ (X_j - X)) *)
Theorem logit_error_case_3 (W_O : V -> U) (x : U) (A A' : V) : linear W_O ->
  minus (logits_3 W_O x A') (logits_3 W_O x A)
  = W_H (plus (W_O (minus A' A)) (W_FFN (W_O (minus A' A)))).
Proof.
  intros O_linear. unfold logits_3. rewrite (linear_minus W_O), (linear_minus W_FFN) by assumption.
  destruct FFN_linear as [FFN_sum _], H_linear as [H_sum _].
  rewrite !FFN_sum, !H_sum, !(linear_minus W_H) by assumption.  (* Eq. 45, 47 to 49 *)
  vectors [W_H x; W_H (W_FFN x); W_H (W_O A); W_H (W_O A'); W_H (W_FFN (W_O A));
           W_H (W_FFN (W_O A'))]; ring.
Qed.
End logits.
