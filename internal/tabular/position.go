package tabular

import (
	"fmt"
)

// Position names the records that have been delivered: all of the inputs before
// File, and the first Records of it. It is JSON, for checkpoints.
type Position struct {
	Inputs []InputID `json:"inputs"`
	File   int       `json:"file"` // index in Inputs; their number when all are done
	// Records of the file, rejected ones included.
	Records int64 `json:"records"`
	// Offset and Line say the same for text, in bytes after decompression and lines.
	Offset int64 `json:"offset,omitempty"`
	Line   int64 `json:"line,omitempty"`
}

// matches says why a position belongs to other inputs than these.
func (p *Position) matches(inputs []InputID) error {
	if p.File < 0 || p.File > len(p.Inputs) || p.Records < 0 || p.Offset < 0 || p.Line < 0 {
		return fmt.Errorf("position %d:%d is impossible", p.File, p.Records)
	}
	if len(p.Inputs) != len(inputs) {
		return fmt.Errorf("the checkpoint was made with %d inputs, now there are %d: name the same ones", len(p.Inputs), len(inputs))
	}
	for i, was := range p.Inputs {
		now := inputs[i]
		if was.Name != now.Name {
			return fmt.Errorf("input %d is %s, the checkpoint was made with %s: name the same inputs in the same order", i+1, now.Name, was.Name)
		}
		if i < p.File || was.Size < 0 {
			continue // read to its end, or not to be compared
		}
		if was.Size != now.Size || !was.ModTime.Equal(now.ModTime) {
			return fmt.Errorf("%s changed since the checkpoint (%d bytes of %s, now %d of %s): restore it, or start over",
				now.Name, was.Size, was.ModTime.UTC().Format("2006-01-02 15:04:05"), now.Size, now.ModTime.UTC().Format("2006-01-02 15:04:05"))
		}
	}
	return nil
}
