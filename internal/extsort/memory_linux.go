package extsort

import "syscall"

// adviseHuge asks for huge pages: records are read back in key order, all over the
// segment, which with small pages is a TLB miss per row.
func adviseHuge(b []byte) { _ = syscall.Madvise(b, syscall.MADV_HUGEPAGE) }
