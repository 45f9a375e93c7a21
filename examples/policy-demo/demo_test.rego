# What the demo shows, as tests of this directory's own data.
package demo_test

import data.sluice.authz

session := {
	"id": "01890000-0000-7000-8000-000000000001",
	"epoch": 1,
	"state": "BEGUN",
	"creator": {"issuer": "urn:sluice:dev", "subject": "loader"},
	"buckets": 4,
	"build_deadline": "2026-01-02T00:00:00Z",
}

ask(subject, action, request) := {
	"version": 1,
	"action": action,
	"principal": {"issuer": "urn:sluice:dev", "subject": subject, "via": "identity"},
	"target": {"database": "demo", "table": "places"},
	"request": request,
	"time": "2026-01-01T00:00:00Z",
	"client": {},
}

within(subject, action, request) := object.union(ask(subject, action, request), {"session": session})

write(buckets) := {"ops": ["read", "write"], "buckets": buckets}

decide(req) := d if d := authz.decision with input as req

test_loader_does_everything_but_write_buckets if {
	decide(ask("loader", "table.write", {"ops": ["create"]})).allow
	decide(ask("loader", "begin", {})).allow
	decide(within("loader", "read", {"ops": ["session"]})).allow
	decide(within("loader", "token", {"ops": ["manifest:write"]})).allow
	decide(within("loader", "commit", {"ops": ["session:commit"]})).allow
	decide(within("loader", "abort", {})).allow
	decide(within("loader", "token", write([0]))).reasons == {"needs_write"}
}

test_each_worker_writes_its_own_half if {
	decide(within("worker-a", "token", write([0, 1]))).constraints.max_ttl == 900
	decide(within("worker-b", "token", write([2, 3]))).constraints.max_ttl == 900
}

test_no_worker_writes_the_others_half if {
	every buckets in [[2], [3], [2, 3], [0, 1, 2, 3], [1, 2]] {
		decide(within("worker-a", "token", write(buckets))).reasons == {"bucket_not_granted"}
	}
	decide(within("worker-b", "token", write([1]))).reasons == {"bucket_not_granted"}
}

test_workers_neither_begin_nor_commit_nor_abort if {
	every worker in ["worker-a", "worker-b"] {
		not decide(ask(worker, "begin", {})).allow
		not decide(within(worker, "commit", {})).allow
		not decide(within(worker, "abort", {})).allow
		not decide(within(worker, "token", {"ops": ["manifest:write"]})).allow
	}
}

test_reader_only_reads if {
	decide(ask("reader", "read", {"ops": ["snapshot:read"]})).allow
	decide(ask("reader", "token", {"ops": ["snapshot:read"]})).allow
	not decide(ask("reader", "begin", {})).allow
	not decide(within("reader", "token", write([0]))).allow
	not decide(within("reader", "read", {"ops": ["session"]})).allow
	not decide(ask("reader", "table.write", {"ops": ["drop"]})).allow
}

test_nothing_outside_demo if {
	every subject in ["loader", "worker-a", "worker-b", "reader"] {
		prod := object.union(ask(subject, "read", {}), {"target": {"database": "prod"}})
		decide(prod).reasons == {"no_grant"}
	}
}
