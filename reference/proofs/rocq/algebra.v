(* What the proofs share: vectors are equal if their coefficients are, a sum without some of its
   terms, and the norm of a multiple. Nothing here is about a paper. *)
Require Import Reals Lra Lia List.
From Coquelicot Require Import Coquelicot.
Import ListNotations.
Open Scope R_scope.

(* The tactic [vectors [x; y]] reduces an equality of vectors, made of x and y by sums, differences
   and multiples, to the equality of the coefficients of x and of y. *)
Section combinations.
Context {V : ModuleSpace R_AbsRing}.

Inductive expression :=
  | nothing
  | atom (i : nat)
  | sum (a b : expression)
  | opposite (a : expression)
  | multiple (r : R) (a : expression).

Fixpoint value (x : list V) (e : expression) : V :=
  match e with
  | nothing => zero
  | atom i => nth i x zero
  | sum a b => plus (value x a) (value x b)
  | opposite a => opp (value x a)
  | multiple r a => scal r (value x a)
  end.

Fixpoint coefficient (e : expression) (i : nat) : R :=
  match e with
  | nothing => 0
  | atom k => if Nat.eqb k i then 1 else 0
  | sum a b => coefficient a i + coefficient b i
  | opposite a => - coefficient a i
  | multiple r a => r * coefficient a i
  end.

Fixpoint combination (x : list V) (c : nat -> R) : V :=
  match x with
  | [] => zero
  | v :: rest => plus (scal (c 0%nat) v) (combination rest (fun i => c (S i)))
  end.

Lemma combination_zero x : combination x (fun _ => 0) = zero.
Proof.
  induction x; simpl; [reflexivity|]. rewrite IHx, plus_zero_r. exact (scal_zero_l (K := R_Ring) a).
Qed.

Lemma combination_atom x k :
  combination x (fun i => if Nat.eqb k i then 1 else 0) = nth k x zero.
Proof.
  revert k. induction x as [|v x IH]; intros [|k]; simpl; try reflexivity.
  - rewrite combination_zero, plus_zero_r. exact (scal_one (K := R_Ring) v).
  - rewrite IH. etransitivity; [|apply plus_zero_l]. f_equal. exact (scal_zero_l (K := R_Ring) v).
Qed.

Lemma combination_sum x c d :
  combination x (fun i => c i + d i) = plus (combination x c) (combination x d).
Proof.
  revert c d. induction x as [|v x IH]; intros c d; simpl; [symmetry; apply plus_zero_l|].
  rewrite (IH (fun i => c (S i)) (fun i => d (S i))).
  replace (scal (c 0%nat + d 0%nat) v) with (plus (scal (c 0%nat) v) (scal (d 0%nat) v))
    by (symmetry; exact (scal_distr_r (K := R_Ring) (c 0%nat) (d 0%nat) v)).
  rewrite <- !plus_assoc. f_equal. rewrite !plus_assoc. f_equal. apply plus_comm.
Qed.

Lemma combination_multiple x r c :
  combination x (fun i => r * c i) = scal r (combination x c).
Proof.
  revert c. induction x as [|v x IH]; intros c; simpl.
  - symmetry. exact (scal_zero_r (K := R_Ring) (V := V) r).
  - rewrite (IH (fun i => c (S i))).
    etransitivity; [|symmetry; exact (scal_distr_l (K := R_Ring) (V := V) r _ _)].
    f_equal. symmetry. exact (scal_assoc (K := R_Ring) r (c 0%nat) v).
Qed.

Lemma opposite_is_multiple (v : V) : opp v = scal (-1) v.
Proof. symmetry. exact (scal_opp_one (K := R_Ring) v). Qed.

Lemma combination_ext x c d : (forall i, c i = d i) -> combination x c = combination x d.
Proof.
  revert c d. induction x as [|v x IH]; intros c d H; simpl; [reflexivity|].
  rewrite (H 0%nat). f_equal. apply IH. intros i. apply H.
Qed.

Lemma value_is_combination x e : value x e = combination x (coefficient e).
Proof.
  induction e; simpl.
  - symmetry. apply combination_zero.
  - symmetry. apply combination_atom.
  - rewrite IHe1, IHe2. symmetry. apply combination_sum.
  - rewrite IHe, opposite_is_multiple, <- combination_multiple.
    apply combination_ext. intros i. ring.
  - rewrite IHe. symmetry. apply combination_multiple.
Qed.

Fixpoint agree (n : nat) (c d : nat -> R) : Prop :=
  match n with
  | O => True
  | S m => c 0%nat = d 0%nat /\ agree m (fun i => c (S i)) (fun i => d (S i))
  end.

Lemma equal_coefficients x a b :
  agree (length x) (coefficient a) (coefficient b) -> value x a = value x b.
Proof.
  rewrite !value_is_combination. generalize (coefficient a) (coefficient b).
  induction x as [|v x IH]; intros c d H; simpl in *; [reflexivity|].
  destruct H as [-> H]. f_equal. apply IH, H.
Qed.
End combinations.

Ltac position v x :=
  match x with
  | v :: _ => constr:(O)
  | _ :: ?rest => let i := position v rest in constr:(S i)
  end.
Ltac quote x v :=
  match v with
  | zero => constr:(nothing)
  | plus ?a ?b => let a := quote x a in let b := quote x b in constr:(sum a b)
  | minus ?a ?b => let a := quote x a in let b := quote x b in constr:(sum a (opposite b))
  | opp ?a => let a := quote x a in constr:(opposite a)
  | scal ?r ?a => let a := quote x a in constr:(multiple r a)
  | _ => let i := position v x in constr:(atom i)
  end.
Ltac vectors x :=
  match goal with
  | |- ?a = ?b =>
      let p := quote x a in let q := quote x b in
      apply (equal_coefficients x p q); simpl; repeat split
  end.

(* Σ over the entries that stay. *)
Definition among {G : AbelianGroup} (stays : nat -> bool) (x : nat -> G) (i : nat) : G :=
  if stays i then x i else zero.
Definition everything (_ : nat) : bool := true.
Definition without (j i : nat) : bool := negb (Nat.eqb i j).

(* A sum without its term j is the sum less that term. *)
Lemma sum_without {G : AbelianGroup} (x : nat -> G) (n j : nat) : (j <= n)%nat ->
  sum_n (among (without j) x) n = minus (sum_n (among everything x) n) (x j).
Proof.
  assert (below : forall n, (n < j)%nat ->
    sum_n (among (without j) x) n = sum_n (among everything x) n).
  { intros m H. apply sum_n_ext_loc. intros i Hi. unfold among, without.
    replace (Nat.eqb i j) with false; [reflexivity|]. symmetry. apply Nat.eqb_neq. lia. }
  intros H. induction n as [|n IH].
  - rewrite !sum_O. replace j with 0%nat by lia. symmetry. apply plus_opp_r.
  - rewrite !sum_Sn. unfold among at 2 4, without at 2, everything at 2.
    destruct (Nat.eqb_spec (S n) j) as [<-|E]; simpl.
    + rewrite below, plus_zero_r by lia. unfold minus. rewrite <- plus_assoc, plus_opp_r.
      symmetry. apply plus_zero_r.
    + rewrite IH by lia. unfold minus. rewrite <- !plus_assoc. f_equal. apply plus_comm.
Qed.

(* A sum over all but a set is the sum over all less the sum over the set. *)
Lemma sum_of_the_rest {V : ModuleSpace R_AbsRing} (x : nat -> V) (set : nat -> bool) (n : nat) :
  sum_n (among (fun i => negb (set i)) x) n
  = minus (sum_n (among everything x) n) (sum_n (among set x) n).
Proof.
  assert (term : forall i, among (fun i => negb (set i)) x i = minus (x i) (among set x i)).
  { intros i. unfold among. destruct (set i); simpl; symmetry; [apply plus_opp_r|].
    unfold minus. rewrite opp_zero. apply plus_zero_r. }
  induction n as [|n IH]; [rewrite !sum_O; apply term|]. rewrite !sum_Sn, IH, term.
  set (p := sum_n _ n). set (q := sum_n _ n). change (among everything x (S n)) with (x (S n)).
  vectors [p; q; x (S n); among set x (S n)]; ring.
Qed.

Lemma sum_of_differences {V : ModuleSpace R_AbsRing}
  (set : nat -> bool) (a : nat -> R) (v : nat -> V) (x : V) (n : nat) :
  sum_n (among set (fun i => scal (a i) (minus (v i) x))) n
  = minus (sum_n (among set (fun i => scal (a i) (v i))) n) (scal (sum_n (among set a) n) x).
Proof.
  induction n as [|n IH].
  - rewrite !sum_O. unfold among. destruct (set 0%nat).
    + vectors [v 0%nat; x]; ring.
    + vectors [x]; unfold zero; simpl; ring.
  - rewrite !sum_Sn, IH. set (p := sum_n _ n). set (q := sum_n _ n).
    unfold among. destruct (set (S n)).
    + vectors [p; x; v (S n)]; unfold plus; simpl; ring.
    + vectors [p; x]; unfold plus, zero; simpl; ring.
Qed.

(* Coquelicot's norms are subhomogeneous by definition; over the reals they are homogeneous. *)
Lemma norm_of_multiple {V : NormedModule R_AbsRing} (r : R) (x : V) :
  norm (scal r x) = Rabs r * norm x.
Proof.
  apply Rle_antisym; [exact (norm_scal r x)|].
  destruct (Req_dec r 0) as [->|H]; [rewrite Rabs_R0, Rmult_0_l; apply norm_ge_0|].
  replace (norm x) with (norm (scal (/ r) (scal r x))) by (f_equal; vectors [x]; field; exact H).
  apply (Rmult_le_reg_l (/ Rabs r)); [apply Rinv_0_lt_compat, Rabs_pos_lt, H|].
  rewrite <- Rmult_assoc, Rinv_l, Rmult_1_l, <- Rabs_inv by (apply Rabs_no_R0, H).
  exact (norm_scal (/ r) (scal r x)).
Qed.

(* No term of a sum of numbers that are at least 0 is above the sum. *)
Lemma term_of_sum (x : nat -> R) (n i : nat) :
  (forall k, 0 <= x k) -> (i <= n)%nat -> x i <= sum_n x n.
Proof.
  intros H. induction n as [|n IH]; intros Hi.
  - rewrite sum_O. replace i with 0%nat by lia. apply Rle_refl.
  - rewrite sum_Sn. unfold plus; simpl. assert (H1 := H (S n)).
    destruct (Nat.eq_dec i (S n)) as [->|]; [|specialize (IH ltac:(lia)); lra].
    assert (0 <= sum_n x n); [|lra]. clear - H.
    induction n; [rewrite sum_O; apply H|]. rewrite sum_Sn. unfold plus; simpl.
    specialize (H (S n)). lra.
Qed.
