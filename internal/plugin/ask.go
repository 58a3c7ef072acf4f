package plugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/holdfast-dev/holdfast/internal/cli"
)

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// ask has somebody type a word. An error means that nothing may be changed; instead are the flags of those
// who have no terminal.
func ask(ctx context.Context, t terminal, word, question, instead string) error {
	if f, ok := t.in.(*os.File); ok && !isTerminal(f) {
		return cli.Usage("there is no terminal to ask at; to go ahead: %s", instead)
	}
	fmt.Fprint(t.out, question)
	answer := make(chan string, 1)
	go func() { // a read of a terminal cannot be interrupted: Ctrl-C leaves it behind, and the process ends
		line, err := bufio.NewReader(t.in).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			line = ""
		}
		answer <- strings.TrimSpace(line)
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(t.out)
		return errors.New("interrupted; nothing was changed")
	case typed := <-answer:
		if typed != word {
			return fmt.Errorf("that is not %s; nothing was changed", word)
		}
	}
	return nil
}
