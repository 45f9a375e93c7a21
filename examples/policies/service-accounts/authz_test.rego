package sluice.authz_test

import data.requests_test as t

pod(subject, action, request) := object.union(
	t.ask(concat(":", ["system:serviceaccount", subject]), action, []),
	{"principal": {"issuer": "https://oidc.west.example.com"}, "request": request},
)

write(buckets) := {"ops": ["write"], "buckets": buckets}

test_the_controller_runs_the_load if {
	d := t.decide(pod("orders:load-controller", "begin", {}))
	d.allow
	d.rule == "orders/load-controller"
	d.constraints.max_ttl == 3600
	t.allowed(pod("orders:load-controller", "commit", {}))
	t.denied(pod("orders:load-controller", "token", write([0])), "outside_grant")
}

test_builders_write_their_buckets if {
	t.allowed(pod("orders:builder-low", "token", write([0, 7])))
	t.allowed(pod("orders:builder-high", "token", write([8])))
	t.denied(pod("orders:builder-low", "token", write([7, 8])), "outside_grant")
	t.denied(pod("orders:builder-high", "token", write([7])), "outside_grant")
	t.denied(pod("orders:builder-low", "token", {"ops": ["write"]}), "outside_grant")
	t.denied(pod("orders:builder-low", "begin", {}), "outside_grant")
}

test_a_load_of_no_buckets_names_none if {
	t.allowed(pod("orders:load-controller", "token", {"ops": ["manifest:write"], "buckets": [3]}))
}

test_a_name_does_not_pose_as_a_namespace if {
	t.denied(pod("orders:builder-low:x", "token", write([0])), "no_account")
	t.denied(pod("other:builder-low", "token", write([0])), "outside_grant")
	t.denied(pod("orders/builder-low", "token", write([0])), "no_account")
	t.denied(object.union(pod("", "token", write([0])), {"principal": {"subject": "orders:builder-low"}}), "no_account")
	t.denied(object.union(pod("", "token", write([0])), {"principal": {"subject": "system:node:orders:builder-low"}}), "no_account")
}

test_another_cluster_is_another_account if {
	req := object.union(pod("orders:builder-low", "token", write([0])), {"principal": {"issuer": "https://oidc.east.example.com"}})
	t.denied(req, "no_account")
}

test_another_database if {
	t.denied(t.on(pod("orders:load-controller", "begin", {}), "ledger", "t"), "outside_grant")
}
