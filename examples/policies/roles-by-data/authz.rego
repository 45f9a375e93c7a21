# Roles give permissions, members have roles in databases, and both are data.
package sluice.authz

import data.sluice.request

default decision := {"allow": false, "reasons": ["no_role"], "rule": "default"}

decision := {"allow": true, "rule": concat(" ", ["role", min(covering)]), "constraints": {"max_ttl": 3600}} if {
	request.sound
	count(covering) > 0
}

# covering are the caller's roles that give everything the request needs. No two are
# added up: a role is what somebody reviewed as a whole.
covering contains role if {
	some role in data.members[input.principal.issuer][input.principal.subject][database]
	every need in request.needs {
		need in data.roles[role]
	}
}

# database is where the caller's roles are looked up. Policy belongs to none.
database := input.target.database if not "policy" in request.needs

database := "(policy)" if "policy" in request.needs
