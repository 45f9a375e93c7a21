# Who may load, read and change which table is data: docs/policy.md describes it. A
# principal holds its own grants and those of its roles and its groups' roles. A
# request is allowed when one grant covers all of it. Nothing else allows.
package sluice.authz

default decision := {"allow": false, "reasons": ["undecided"], "rule": "default"}

decision := {
	"allow": true,
	"rule": best[1],
	"constraints": {"max_ttl": best[0]},
} if {
	callable
	sound
	best := max(covering)
} else := {"allow": true, "rule": "(creator)"} if {
	# Whoever began a session may see it and give it up while it holds any grant on
	# the target, as Fluss has it.
	input.action in {"abort", "read"}
	input.principal.via == "identity"
	about_session
	not gives_up
	is_creator
	holds_something
} else := {"allow": true, "rule": "(worker)"} if {
	# Whoever may work in a session may see how it stands.
	input.action == "read"
	about_session
	some grant in grants
	some permission in {"write", "commit"}
	grant[1][permission]
} else := {"allow": true, "rule": "(describe)"} if {
	# A table is described to whoever may do something with it, as Fluss has it.
	input.action == "read"
	input.request.ops == ["table"]
	holds_something
} else := {"allow": false, "reasons": reasons, "rule": "(deny)"}

# callable: a Sluice token is good for the work inside a session and nothing else.
callable if input.principal.via == "identity"

callable if {
	input.principal.via == "token"
	input.action in {"object", "sign", "credential", "commit", "read"}
}

# sound is what a request must be before a grant counts. Sluice checks it again
# whatever rules say; here it is said so that the log names the right reason.
sound if {
	not lacks_session
	not malformed
}

lacks_session if {
	not input.session
	input.action in {"commit", "abort"}
}

lacks_session if {
	not input.session
	some op in input.request.ops
	op in {"write", "manifest:write", "session:commit"}
}

malformed if {
	some name in [input.target.database, input.target.table]
	not regex.match(`^[A-Za-z0-9_-]*$`, name)
}

# about_session: asked for is the session itself and not rows of its target.
about_session if {
	input.session
	not reads_rows
}

reads_rows if {
	some op in input.request.ops
	op in {"read", "snapshot:read", "lake:read"}
}

# gives_up: a decided load is ended half published, which is for operators.
gives_up if {
	input.action == "abort"
	"give-up" in input.request.ops
}

is_creator if {
	input.session.creator.issuer == input.principal.issuer
	input.session.creator.subject == input.principal.subject
}

# needs are the permissions a request takes.
needs := {"begin"} if input.action == "begin"

needs := {"commit"} if input.action == "commit"

needs := {"alter"} if input.action == "abort"

needs := {"alter"} if {
	input.action == "read"
	about_session
}

needs := {"read"} if {
	input.action == "read"
	not about_session
}

needs := {"policy"} if input.action == "policy.write"

needs := {object.get(permission_of, op, "unknown") | some op in input.request.ops} if {
	input.action in {"token", "credential", "sign", "object", "table.write"}
}

# An operation that is not here takes the permission "unknown", which the schema of
# the data does not let anybody grant. To read a bucket of a session, which nobody
# else sees yet, is part of writing it: an upload is compared when its answer is lost.
permission_of := {
	"read": "write",
	"write": "write",
	"manifest:write": "commit",
	"session:commit": "commit",
	"snapshot:read": "read",
	"lake:read": "read",
	"create": "create",
	"drop": "drop",
}

# covering has [longest lifetime, rule] of each grant that covers the request. A
# permission that is missing or does not reach the buckets leaves a gap, and then
# the counts differ.
covering := [[min(lifetimes), grant[0]] |
	some grant in grants
	lifetimes := [seconds | some need in needs; seconds := lifetime(grant[1][need])]
	count(lifetimes) == count(needs)
]

# lifetime of a permission in seconds, if it reaches the buckets asked for.
lifetime(limits) := object.get(limits, "max_ttl", 31536000) if reaches(limits)

reaches(limits) if not limits.buckets

reaches(limits) if {
	some span in limits.buckets
	span[0] <= min(input.request.buckets)
	max(input.request.buckets) <= span[1]
}

reaches(limits) if {
	input.request.buckets[0]
	count(limits.buckets) > 1
	every bucket in input.request.buckets {
		some span in limits.buckets
		span[0] <= bucket
		bucket <= span[1]
	}
}

# grants are the caller's entries for the target as [rule, entry]. Each holder gives
# one, the most specific, so that a narrow entry can take away what a wide one gives.
grants := array.concat(
	[["(own)", entries[0]] |
		entries := [entry |
			some key in keys
			entry := data.principals[input.principal.issuer][input.principal.subject].grants[key]
		]
	],
	[[role, entries[0]] |
		some role in roles
		entries := [entry | some key in keys; entry := data.roles[role].grants[key]]
	],
)

holds_something if {
	some grant in grants
	count(grant[1]) > 0
}

# keys under which a target may be granted, the most specific first.
default keys := ["*"]

keys := [
	concat(".", [input.target.database, input.target.table]),
	concat(".", [input.target.database, "*"]),
	"*",
]

default roles := []

roles := data.principals[input.principal.issuer][input.principal.subject].roles if not input.principal.groups

roles := array.concat(
	[role | some role in data.principals[input.principal.issuer][input.principal.subject].roles],
	[role |
		some group in input.principal.groups
		some role in data.groups[input.principal.issuer][group].roles
	],
) if {
	input.principal.groups
}

# reasons why nothing covered the request. Callers and their dashboards depend on
# the codes: add some, never rename one.
reasons contains "unknown_action" if not needs

reasons contains "nothing_asked" if count(needs) == 0

reasons contains "token_cannot" if not callable

reasons contains "no_session" if lacks_session

reasons contains "malformed_name" if malformed

reasons contains "no_grant" if count(grants) == 0

reasons contains concat("_", ["needs", need]) if {
	some need in needs
	count(grants) > 0
	every grant in grants {
		not grant[1][need]
	}
}

reasons contains "bucket_not_granted" if {
	some need in needs
	some grant in grants
	grant[1][need]
	not lifetime(grant[1][need])
}

# No single grant covers what several together would.
reasons contains "no_single_grant" if {
	count(needs) > 1
	count(grants) > 1
}
