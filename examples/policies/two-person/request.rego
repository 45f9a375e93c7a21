# What a request needs, and what it must be before anything grants it. This file is the
# same in every recipe.
package sluice.request

# needs are the permissions a request takes: begin, write, commit, read, alter, create,
# drop, policy. An operation that nobody knows takes "unknown", which nothing grants.
needs := {"begin"} if input.action == "begin"

needs := {"commit"} if input.action == "commit"

needs := {"alter"} if input.action == "abort"

needs := {"read"} if input.action == "read"

needs := {"policy"} if input.action == "policy.write"

needs := {object.get(permission_of, op, "unknown") | some op in input.request.ops} if {
	input.action in {"token", "credential", "sign", "object", "table.write"}
}

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

# sound: a caller with a name, a target, something asked that is known, a session where
# one is written, and no Sluice token outside of its session.
sound if {
	input.principal.issuer != ""
	input.principal.subject != ""
	callable
	count(needs) > 0
	not "unknown" in needs
	targeted
	in_session
}

callable if input.principal.via == "identity"

callable if {
	input.principal.via == "token"
	input.action in {"credential", "sign", "object", "commit", "read"}
}

targeted if input.target.database != ""

targeted if needs == {"policy"}

in_session if input.session

in_session if count(needs & {"write", "commit", "alter"}) == 0
