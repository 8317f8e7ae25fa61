"""Reading a Result: one screen, one HTML file, one trace, one folder, or two results side by side.

    console.py     print_result(result, console)       what a person wants on one screen
    document.py    to_document(result)                 the versioned JSON form, and its JSON Schema
    notebook.py    notebook_html(result)               what a notebook shows of a result
    run_folder.py  save(result), load(path)            folders named by content hash
    run_list.py    RunList(root)                       what folders there are: search, tags, delete
    html.py        write_html(result, path)            one offline HTML file with pictures
    trace.py       write_trace(result, path)           gzipped Chrome JSON, opens in Perfetto
    compare.py     compare(a, b)                       where two results differ, and what explains it

Everything here works from `windtunnel.physics.step.result.Result` alone, or from the plain data of another study: no physics.
"""
