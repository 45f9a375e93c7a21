package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fluss-sluice/sluice/policy/editor"
)

func newPolicySchemas(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "schemas DIR",
		Short: "Write the files by which editors and opa know the input",
		Long: `Write to DIR the JSON Schemas of input, decision and data, the capabilities, an
input.json that has every field, and settings for OPA's language server and the OPA
extension of Visual Studio Code, which then complete and check what rules write.
Settings that exist are kept. DIR is the folder that the editor opens, above the
policy directory.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			written, err := editor.Write(args[0])
			if err != nil {
				return err
			}
			if g.json() {
				return g.printJSON(map[string]any{"files": written, "annotation": editor.Annotation})
			}
			for _, w := range written {
				kept := ""
				if w.Kept {
					kept = " (kept as it was)"
				}
				fmt.Fprintf(g.stdout, "%s%s\n", w.File, kept)
			}
			fmt.Fprintf(g.stdout, "\nPut this before the package line of each rule file:\n\n%s", editor.Annotation)
			return nil
		},
	}
}
