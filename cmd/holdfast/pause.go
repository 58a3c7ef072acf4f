package main

import "github.com/spf13/cobra"

func pauseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pause",
		Short: "Do nothing until told to stop: what the quorum guard's pods run beside their probe",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			<-cmd.Context().Done()
			return nil
		},
	}
}
