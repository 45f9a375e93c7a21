# Loads run in the windows of their database, in UTC, and every lifetime ends with the
# window. Reading and giving up are always in time.
package sluice.authz

import data.sluice.request

default decision := {"allow": false, "reasons": ["not_a_member"], "rule": "default"}

decision := {"allow": true, "rule": "any_time"} if {
	request.sound
	member
	count(request.needs - {"read", "alter"}) == 0
} else := {"allow": true, "rule": "window", "constraints": {"max_ttl": seconds_left}} if {
	request.sound
	member
	count(request.needs - {"begin", "write", "commit"}) == 0
} else := {"allow": false, "reasons": ["outside_window"], "rule": "window"} if {
	member
}

member if {
	some group in input.principal.groups
	group in data.members[input.principal.issuer][input.target.database]
}

now := time.parse_rfc3339_ns(input.time)

# minute of the day.
minute := (clock[0] * 60) + clock[1] if clock := time.clock(now)

# seconds_left until the last of the windows that are open now closes; undefined when
# none is open.
seconds_left := max(closing)

closing contains ((window.to - minute) * 60) - seconds if {
	some window in data.windows[input.target.database]
	time.weekday(now) in window.days
	window.from <= minute
	minute < window.to
	seconds := time.clock(now)[2]
}
