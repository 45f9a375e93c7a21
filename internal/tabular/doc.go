// Package tabular reads and writes tables of rows as files: CSV, JSON Lines,
// Parquet and Arrow IPC, plain or compressed, from files, globs and pipes.
package tabular
