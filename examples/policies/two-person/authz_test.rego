package sluice.authz_test

import data.requests_test as t

person(subject) := concat(" ", [t.issuer, subject])

change(subject, op, author, approvals) := object.union(
	json.remove(t.ask(subject, "policy.write", [op]), ["target"]),
	{"request": {"policy": {"id": "3f8a", "author": person(author), "approvals": [person(a) | some a in approvals]}}},
)

test_administrators_propose_and_look if {
	every op in ["read", "propose", "withdraw", "rollback", "shadow"] {
		t.allowed(change("ada", op, "ada", []))
		t.denied(change("loader", op, "ada", []), "no_grant")
	}
}

test_nobody_approves_an_own_revision if {
	t.denied(change("ada", "approve", "ada", []), "own_revision")
	t.allowed(change("grace", "approve", "ada", []))
	t.denied(change("loader", "approve", "ada", []), "no_grant")
}

test_activating_takes_two if {
	t.denied(change("ada", "activate", "ada", []), "needs_approval")
	t.denied(change("grace", "activate", "ada", []), "needs_approval")
	t.denied(change("ada", "activate", "ada", ["ada"]), "needs_approval")
	t.allowed(change("ada", "activate", "ada", ["grace"]))
	t.allowed(change("grace", "activate", "ada", ["ada", "grace"]))
}

test_an_approval_counts_while_its_giver_is_an_administrator if {
	t.denied(change("ada", "activate", "ada", ["loader"]), "needs_approval")
	t.denied(change("ada", "activate", "ada", ["somebody-who-left"]), "needs_approval")
}

test_no_edit_beside_the_two if {
	t.denied(change("ada", "edit", "ada", ["grace"]), "needs_proposal")
	t.denied(change("ada", "break_glass", "ada", ["grace"]), "not_permitted")
}

test_breaking_the_glass if {
	t.allowed(t.with_groups(change("olga", "break_glass", "ada", []), ["on-call"]))
	t.denied(t.with_groups(change("olga", "activate", "ada", []), ["on-call"]), "no_grant")
	t.denied(t.with_groups(change("olga", "break_glass", "ada", []), ["off-call"]), "no_grant")
}

test_loads_go_on_as_before if {
	t.allowed(t.ask("loader", "begin", []))
	t.denied(t.ask("loader", "token", ["write"]), "no_grant")
	t.denied(t.ask("ada", "begin", []), "no_grant")
}
