// Package awssts vends S3 keys that open one grant and nothing else, by AssumeRole
// or AssumeRoleWithWebIdentity with an inline session policy.
//
// # The session policy
//
// Keys of a session may do what the role and the session policy both allow. The
// policy is built by a typed encoder, never by joining strings. It allows on
// written locations
//
//	s3:PutObject s3:GetObject s3:AbortMultipartUpload s3:ListMultipartUploadParts
//
// and on read ones s3:GetObject; nothing lists and nothing deletes. In a name the
// characters * ? $ become ${*} ${?} ${$}, so that a table called "*" is a table and
// not all of them. Characters outside ASCII are written as \uXXXX: STS accepts
// Latin-1 only, and one byte is then one character of its limit. A scope without
// locations is an explicit Deny of everything, because STS takes an empty policy for
// none, which is the whole role.
//
// Measured: SeaweedFS 4.48 and MiniStack 1.5.33 know no ${*}; keys for a name with
// such a character open nothing there. SeaweedFS refuses a policy with NotResource
// (Config.PlainPolicies); MiniStack honours it.
//
// # The budget
//
// STS takes 2,048 characters of policy. Before any call the size is computed:
//
//  1. Locations inside other granted locations are dropped, and each name is listed
//     once. If that fits, it is sent.
//  2. Decades of table buckets become patterns. A pattern alone would widen: in
//     ".../1?/snap-0/*" the ? also stands for a letter or a slash. So an Allow of
//     ".../1?/snap-0/*" goes together with a Deny of everything that is not one of
//     ".../?0/snap-0/*" to ".../?9/snap-0/*": 2 + 10 patterns for 20 names, 9 + 10
//     for 90. Whether the two together match exactly the granted keys, over all
//     strings, is then decided by an automaton (proof.go); what it does not prove is
//     not used. A provider that ignored the Deny would open ".../1x/snap-0/", which
//     no layout names, and never another bucket.
//  3. The grant is split over several credentials, at most Config.MaxCredentials.
//  4. Refusal, with the numbers.
//
// STS has a second limit on a packed form, whose size it reports as a percentage only
// and which session tags share. Observer.Call passes it on; when STS refuses a policy
// for it, the part is halved.
//
// # Lifetime
//
// The smallest of policy, session deadline, Config.MaxLife, the role's maximum, and one hour when the
// broker itself runs on a role (role chaining); the answer says which. STS issues no
// keys of less than 15 minutes: a shorter bound is refused, not stretched.
//
// # Cache
//
// Answers are cached per principal, session, epoch, locations and policy revision.
// Misses of one key share a call; an error reaches whoever waited and is forgotten.
// An answer is replaced when about a fifth of its life is left, a little earlier or
// later each time; while STS is out of order the old one serves until it ends.
package awssts
