//go:build unix && !linux

package extsort

func adviseHuge([]byte) {}
