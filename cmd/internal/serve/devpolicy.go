package serve

import "github.com/fluss-sluice/sluice/api/authn"

// devPolicyData lets every identity of the development issuer do everything, when
// --dev runs without a policy directory. Whoever can ask that issuer for a token
// can be anybody already.
var devPolicyData = []byte(`{
  "principals": {},
  "groups": {"` + authn.DevIssuerName + `": {"` + authn.DevGroup + `": {"roles": ["everything"]}}},
  "roles": {"everything": {"grants": {"*": {
    "begin": {}, "write": {}, "commit": {}, "read": {}, "alter": {}, "create": {}, "drop": {}, "policy": {}
  }}}}
}`)
