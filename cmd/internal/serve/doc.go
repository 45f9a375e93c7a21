// Package serve wires the concrete parts of the Sluice service together: stores,
// policy, identities, vendors and the target's driver. It is the only place that does,
// and has two faces:
//
//   - Main is the whole of sluiced: command line, configuration file, signals.
//   - Start runs the service inside the process of `sluice load --cluster`, for one
//     load into a live cluster and on loopback only.
package serve
