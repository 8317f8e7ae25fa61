"""Questions: what each study is asked."""
