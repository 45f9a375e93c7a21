// Package flusspb holds the messages of Apache Fluss's native RPC and the table of
// its calls. Package client speaks them; its users need this package only to script
// the fake cluster of flusstest.
//
// fluss.pb.go is generated from fluss.proto by
//
//	go test ./fluss/client/flusspb -update
//
// which needs no other program; the same test without the flag fails when the two
// differ.
package flusspb
