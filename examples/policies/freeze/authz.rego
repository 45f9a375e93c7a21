# A frozen table, or database, takes no load: none begins, none writes and none
# commits. What runs can be given up, and reading goes on.
package sluice.authz

import data.sluice.request

default decision := {"allow": false, "reasons": ["no_grant"], "rule": "default"}

decision := {"allow": false, "reasons": ["frozen"], "rule": concat(" ", ["freeze", min(freezes)])} if {
	count(freezes) > 0
	count(request.needs - {"read", "alter"}) > 0
} else := {"allow": true, "rule": "grant", "constraints": {"max_ttl": 900}} if {
	request.sound
	every need in request.needs {
		need in data.grants[input.principal.issuer][input.principal.subject][input.target.database]
	}
}

# freezes that reach the target now. The end is optional; a freeze without one holds
# until somebody takes it out of the data.
freezes contains key if {
	some key in [input.target.database, concat(".", [input.target.database, input.target.table])]
	freeze := data.frozen[key]
	not over(freeze)
}

over(freeze) if time.parse_rfc3339_ns(freeze.until) <= time.parse_rfc3339_ns(input.time)
