# A database belongs to teams: their members do everything in it, and whoever the
# owners name reads it.
package sluice.authz

import data.sluice.request

default decision := {"allow": false, "reasons": ["not_your_database"], "rule": "default"}

decision := {"allow": true, "rule": "owner"} if {
	request.sound
	not "policy" in request.needs
	owns
} else := {"allow": true, "rule": "reader", "constraints": {"max_ttl": 900}} if {
	request.sound
	request.needs == {"read"}
	reads
}

database := data.databases[input.target.database]

owns if {
	some group in input.principal.groups
	group in database.owners[input.principal.issuer]
}

reads if database.public

reads if {
	some group in input.principal.groups
	group in database.readers[input.principal.issuer]
}
