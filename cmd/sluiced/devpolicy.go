package main

// devPolicyData lets every identity of the development issuer do everything, when
// --dev runs without a policy directory. Whoever can ask that issuer for a token
// can be anybody already.
var devPolicyData []byte
