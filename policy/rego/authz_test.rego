# Tests of the default policy. Each test that expects a denial differs in one thing
# from a request that is allowed, so that none passes by accident.
package sluice.authz_test

import data.sluice.authz

issuer := "https://issuer.example"

principals := {issuer: {
	"loader": {"roles": ["loader"]},
	"worker-a": {"grants": {"demo.*": {"write": {"buckets": [[0, 1]], "max_ttl": 600}}}},
	"worker-b": {"grants": {"demo.*": {"write": {"buckets": [[2, 3], [8, 9]], "max_ttl": 600}}}},
	"reader": {"roles": ["reader"]},
	"owner": {"roles": ["owner"]},
	"careful": {
		"roles": ["everything"],
		"grants": {"demo.secret": {"read": {}}},
	},
	"split": {"roles": ["short", "long"]},
	"halves": {"roles": ["writes", "commits"]},
	"stranger": {},
	"misled": {"roles": ["gone"]},
	"admin": {"roles": ["everything"]},
}}

groups := {issuer: {"readers": {"roles": ["reader"]}}}

roles := {
	"loader": {"grants": {"demo.*": {
		"begin": {"max_ttl": 86400},
		"write": {},
		"commit": {},
		"read": {},
		"create": {},
	}}},
	"reader": {"grants": {"*": {"read": {}}, "demo.hidden": {}}},
	"owner": {"grants": {"demo.t": {"alter": {}, "drop": {}}}},
	"short": {"grants": {"demo.*": {"write": {"max_ttl": 60}}}},
	"long": {"grants": {"demo.*": {"write": {"max_ttl": 900}}}},
	"writes": {"grants": {"demo.*": {"write": {}}}},
	"commits": {"grants": {"demo.*": {"commit": {}}}},
	"everything": {"grants": {"*": {
		"begin": {},
		"write": {},
		"commit": {},
		"read": {},
		"alter": {},
		"create": {},
		"drop": {},
		"policy": {},
	}}},
}

session(subject) := {
	"id": "01890000-0000-7000-8000-000000000001",
	"epoch": 1,
	"state": "BEGUN",
	"creator": {"issuer": issuer, "subject": subject},
	"buckets": 16,
	"build_deadline": "2026-01-02T00:00:00Z",
}

# ask is a request on demo.t without a session.
ask(subject, action, request) := {
	"version": 1,
	"action": action,
	"principal": {"issuer": issuer, "subject": subject, "via": "identity"},
	"target": {"database": "demo", "table": "t"},
	"request": request,
	"time": "2026-01-01T00:00:00Z",
	"client": {},
}

# within is a request on demo.t within a session that loader began.
within(subject, action, request) := object.union(ask(subject, action, request), {"session": session("loader")})

by_token(req) := object.union(req, {"principal": {"via": "token"}})

on(req, table) := object.union(req, {"target": {"table": table}})

decide(req) := d if {
	d := authz.decision with input as req
		with data.principals as principals
		with data.groups as groups
		with data.roles as roles
}

allowed(req) if decide(req).allow == true

denied(req, reason) if {
	d := decide(req)
	d.allow == false
	reason in d.reasons
}

write(first, last) := {"ops": ["write"], "buckets": [b | some b in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]; b >= first; b <= last], "ttl": 300}

# begin

test_loader_begins_with_its_time_limit if {
	d := decide(ask("loader", "begin", {"ttl": 3600}))
	d.allow
	d.constraints.max_ttl == 86400
	d.rule == "loader"
}

test_worker_cannot_begin if denied(ask("worker-a", "begin", {}), "needs_begin")

test_begin_in_another_database_is_denied if {
	denied(object.union(ask("loader", "begin", {}), {"target": {"database": "prod"}}), "no_grant")
}

test_stranger_is_denied if denied(ask("stranger", "begin", {}), "no_grant")

test_unknown_subject_is_denied if denied(ask("nobody", "begin", {}), "no_grant")

test_same_subject_of_another_issuer_is_somebody_else if {
	denied(object.union(ask("loader", "begin", {}), {"principal": {"issuer": "https://evil.example"}}), "no_grant")
}

test_a_role_that_does_not_exist_grants_nothing if denied(ask("misled", "begin", {}), "no_grant")

# token: buckets and lifetimes

test_worker_gets_its_own_buckets if {
	d := decide(within("worker-a", "token", write(0, 1)))
	d.allow
	d.constraints.max_ttl == 600
	d.rule == "(own)"
}

test_worker_may_read_back_what_it_writes if {
	allowed(within("worker-a", "token", {"ops": ["read", "write"], "buckets": [0, 1]}))
	allowed(by_token(within("worker-a", "object", {"ops": ["read"], "buckets": [0], "method": "GET"})))
	denied(within("worker-a", "token", {"ops": ["read"], "buckets": [2]}), "bucket_not_granted")
}

test_worker_gets_one_of_its_buckets if allowed(within("worker-a", "token", write(1, 1)))

test_worker_is_refused_another_workers_bucket if {
	denied(within("worker-a", "token", write(2, 2)), "bucket_not_granted")
}

test_worker_is_refused_a_span_that_reaches_beyond if {
	denied(within("worker-a", "token", write(0, 2)), "bucket_not_granted")
}

test_bucket_order_does_not_matter if {
	allowed(within("worker-a", "token", {"ops": ["write"], "buckets": [1, 0]}))
	denied(within("worker-a", "token", {"ops": ["write"], "buckets": [2, 0]}), "bucket_not_granted")
}

test_limited_worker_must_name_buckets if {
	denied(within("worker-a", "token", {"ops": ["write"]}), "bucket_not_granted")
	denied(within("worker-a", "token", {"ops": ["write"], "buckets": []}), "bucket_not_granted")
}

test_two_spans_together_cover if {
	allowed(within("worker-b", "token", {"ops": ["write"], "buckets": [2, 9]}))
	denied(within("worker-b", "token", {"ops": ["write"], "buckets": [2, 5, 9]}), "bucket_not_granted")
}

test_the_longest_lifetime_of_several_grants_counts if {
	d := decide(within("split", "token", write(0, 0)))
	d.constraints.max_ttl == 900
	d.rule == "long"
}

test_no_limit_leaves_it_to_the_server if {
	decide(within("loader", "token", write(0, 9))).constraints.max_ttl == 31536000
}

test_worker_cannot_commit_or_write_the_manifest if {
	denied(within("worker-a", "token", {"ops": ["session:commit"]}), "needs_commit")
	denied(within("worker-a", "token", {"ops": ["manifest:write"]}), "needs_commit")
	denied(within("worker-a", "token", {"ops": ["write", "manifest:write"], "buckets": [0]}), "needs_commit")
	denied(within("worker-a", "commit", {}), "needs_commit")
}

test_one_grant_must_cover_the_whole_request if {
	allowed(within("loader", "token", {"ops": ["write", "manifest:write"], "buckets": [0]}))
	denied(within("halves", "token", {"ops": ["write", "manifest:write"], "buckets": [0]}), "no_single_grant")
	allowed(within("halves", "token", {"ops": ["write"], "buckets": [0]}))
	allowed(within("halves", "token", {"ops": ["manifest:write"]}))
}

test_unknown_operation_is_denied if {
	denied(within("admin", "token", {"ops": ["delete"]}), "needs_unknown")
	denied(within("admin", "token", {"ops": ["write", "delete"], "buckets": [0]}), "needs_unknown")
}

test_no_operation_is_denied if {
	denied(within("admin", "token", {"ops": []}), "nothing_asked")
	denied(within("admin", "token", {}), "nothing_asked")
}

test_reader_cannot_write if {
	denied(within("reader", "token", write(0, 1)), "needs_write")
	denied(within("reader", "token", {"ops": ["read"], "buckets": [0]}), "needs_write")
	allowed(ask("reader", "token", {"ops": ["snapshot:read", "lake:read"]}))
}

# the most specific entry of a holder

test_an_empty_entry_hides_a_wider_one if {
	allowed(on(ask("reader", "read", {}), "t"))
	denied(on(ask("reader", "read", {}), "hidden"), "needs_read")
}

test_an_own_entry_does_not_hide_a_role if {
	allowed(on(ask("careful", "begin", {}), "secret"))
}

test_table_names_do_not_match_by_prefix if {
	allowed(ask("owner", "table.write", {"ops": ["drop"]}))
	denied(on(ask("owner", "table.write", {"ops": ["drop"]}), "t2"), "no_grant")
}

# abort and read: creator or alter

test_creator_may_abort_and_see_its_session if {
	allowed(within("loader", "abort", {}))
	decide(within("loader", "read", {})).rule == "(creator)"
}

test_giving_a_decided_load_up_is_for_operators if {
	denied(within("loader", "abort", {"ops": ["give-up"]}), "needs_alter")
	allowed(within("owner", "abort", {"ops": ["give-up"]}))
}

test_others_may_not if {
	denied(within("worker-a", "abort", {}), "needs_alter")
	denied(within("reader", "abort", {}), "needs_alter")
	denied(within("reader", "read", {"ops": ["session"]}), "needs_alter")
	denied(within("stranger", "read", {"ops": ["session"]}), "no_grant")
}

test_workers_of_the_target_may_see_a_session_and_show_that_they_live if {
	allowed(within("worker-a", "read", {"ops": ["session"]}))
	allowed(within("worker-a", "read", {"ops": ["heartbeat"]}))
	allowed(by_token(within("worker-a", "read", {"ops": ["heartbeat"]})))
	allowed(within("halves", "read", {}))
	decide(within("worker-a", "read", {})).rule == "(worker)"
	denied(object.union(within("worker-a", "read", {}), {"target": {"database": "prod"}}), "no_grant")
}

test_seeing_a_session_is_not_reading_its_rows if {
	denied(within("worker-a", "read", {"ops": ["snapshot:read"]}), "needs_read")
	denied(by_token(within("worker-a", "read", {"ops": ["snapshot:read"]})), "needs_read")
	allowed(within("reader", "read", {"ops": ["snapshot:read"]}))
	allowed(by_token(within("reader", "read", {"ops": ["snapshot:read"]})))
}

test_alter_may_abort_and_see_sessions_of_others if {
	allowed(within("owner", "abort", {}))
	allowed(within("owner", "read", {}))
}

test_creator_without_any_grant_left_may_not if {
	req := object.union(ask("stranger", "abort", {}), {"session": session("stranger")})
	denied(req, "no_grant")
}

test_same_subject_of_another_issuer_is_not_the_creator if {
	s := object.union(session("worker-a"), {"creator": {"issuer": "https://evil.example"}})
	denied(object.union(ask("worker-a", "abort", {}), {"session": s}), "needs_alter")
	allowed(object.union(ask("worker-a", "abort", {}), {"session": session("worker-a")}))
}

test_commit_is_for_any_holder_of_commit if {
	allowed(within("loader", "commit", {"epoch": 1}))
	allowed(within("admin", "commit", {"epoch": 1}))
}

# tokens: the subject must still hold the grant

test_token_writes_while_its_subject_holds_the_grant if {
	put := {"ops": ["write"], "buckets": [1], "method": "PUT", "path": "t/1/x"}
	allowed(by_token(within("worker-a", "object", put)))
	denied(by_token(within("reader", "object", put)), "needs_write")
	denied(by_token(within("stranger", "object", put)), "no_grant")
	denied(by_token(within("worker-a", "object", object.union(put, {"buckets": [2]}))), "bucket_not_granted")
}

test_token_signs_commits_and_reads if {
	allowed(by_token(within("worker-a", "sign", {"ops": ["write"], "buckets": [0], "method": "PUT"})))
	allowed(by_token(within("worker-a", "credential", {"ops": ["write"], "buckets": [0]})))
	allowed(by_token(within("loader", "commit", {})))
	allowed(by_token(within("worker-a", "read", {})))
	allowed(by_token(ask("reader", "read", {})))
}

test_token_of_a_stranger_cannot_see_its_session if {
	allowed(by_token(within("worker-a", "read", {})))
	denied(by_token(within("stranger", "read", {})), "no_grant")
	denied(by_token(within("reader", "read", {})), "needs_alter")
}

test_token_begins_begets_and_edits_nothing if {
	denied(by_token(ask("admin", "begin", {})), "token_cannot")
	denied(by_token(within("admin", "token", write(0, 1))), "token_cannot")
	denied(by_token(ask("admin", "table.write", {"ops": ["create"]})), "token_cannot")
	denied(by_token(ask("admin", "policy.write", {})), "token_cannot")
	denied(by_token(within("admin", "abort", {})), "token_cannot")
	denied(by_token(within("loader", "abort", {})), "token_cannot")
}

test_another_way_in_is_denied if {
	denied(object.union(ask("admin", "begin", {}), {"principal": {"via": "magic"}}), "token_cannot")
}

# tables

test_create_and_drop_are_separate if {
	allowed(ask("loader", "table.write", {"ops": ["create"]}))
	denied(ask("loader", "table.write", {"ops": ["drop"]}), "needs_drop")
	denied(ask("loader", "table.write", {}), "nothing_asked")
}

test_reading_tables_takes_read if {
	allowed(ask("reader", "read", {}))
	allowed(ask("loader", "read", {"ops": ["list"]}))
	denied(ask("worker-a", "read", {}), "needs_read")
	denied(ask("worker-a", "read", {"ops": ["snapshot:read"]}), "needs_read")
}

test_a_table_is_described_to_whoever_may_do_something_with_it if {
	allowed(ask("worker-a", "read", {"ops": ["table"]}))
	allowed(ask("owner", "read", {"ops": ["table"]}))
	denied(on(ask("owner", "read", {"ops": ["table"]}), "t2"), "no_grant")
	denied(on(ask("reader", "read", {"ops": ["table"]}), "hidden"), "needs_read")
	denied(ask("worker-a", "read", {"ops": ["table", "snapshot:read"]}), "needs_read")
}

# groups

test_groups_bring_roles if {
	member := object.union(ask("nobody", "read", {}), {"principal": {"groups": ["x", "readers"]}})
	allowed(member)
	denied(object.union(member, {"action": "begin"}), "needs_begin")
	denied(object.union(member, {"principal": {"groups": ["x"]}}), "no_grant")
}

test_groups_of_another_issuer_bring_nothing if {
	denied(object.union(ask("nobody", "read", {}), {"principal": {"groups": ["readers"], "issuer": "https://evil.example"}}), "no_grant")
}

test_own_roles_count_beside_groups if {
	allowed(object.union(ask("loader", "begin", {}), {"principal": {"groups": ["readers"]}}))
}

# policy edits and what is not known

test_policy_edits_take_policy_on_everything if {
	admin := object.remove(ask("admin", "policy.write", {}), ["target"])
	allowed(admin)
	denied(object.remove(ask("loader", "policy.write", {}), ["target"]), "no_grant")
}

test_unknown_action_is_denied if denied(ask("admin", "x-new", {"ops": ["write"]}), "unknown_action")

test_data_that_grant_nothing_allow_nothing if {
	d := authz.decision with input as ask("admin", "begin", {})
	d.allow == false
}

# invariants, as Sluice's own floor has them

test_no_write_without_a_session if {
	every ops in [["write"], ["read", "write"], ["manifest:write"], ["session:commit"]] {
		denied(ask("admin", "token", {"ops": ops}), "no_session")
		denied(ask("admin", "credential", {"ops": ops}), "no_session")
		allowed(within("admin", "token", {"ops": ops}))
	}
	every action in ["commit", "abort"] {
		denied(ask("admin", action, {}), "no_session")
		allowed(within("admin", action, {}))
	}
}

test_no_table_stands_for_others if {
	allowed(within("admin", "token", write(0, 1)))
	every name in ["*", "a.b", "../t", "t/1", "t 1", "t\u0000"] {
		denied(on(within("admin", "token", write(0, 1)), name), "malformed_name")
		denied(object.union(ask("admin", "begin", {}), {"target": {"database": name}}), "malformed_name")
	}
}

test_never_longer_than_the_grant if {
	every ttl in [0, 1, 600, 601, 86400, 999999999] {
		d := decide(within("worker-a", "token", object.union(write(0, 1), {"ttl": ttl})))
		d.constraints.max_ttl == 600
	}
}

test_no_allow_by_a_missing_field if {
	every field in ["action", "principal", "request"] {
		denied_without(within("loader", "token", write(0, 1)), field)
	}
	every field in ["principal/issuer", "principal/subject", "principal/via", "request/ops"] {
		denied_without(within("loader", "token", write(0, 1)), field)
	}
	denied_without(within("loader", "token", write(0, 1)), "target")
	denied_without(within("loader", "token", write(0, 1)), "session")
}

denied_without(req, field) if {
	allowed(req)
	not allowed(json.remove(req, [field]))
}

test_no_allow_for_an_unknown_action if {
	every action in ["x-unknown", "", "BEGIN", "begin "] {
		denied(within("admin", action, write(0, 1)), "unknown_action")
		denied(ask("admin", action, {}), "unknown_action")
	}
}
