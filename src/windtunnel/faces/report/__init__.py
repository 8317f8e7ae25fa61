"""Answers as they are shown: for each study a function that makes a `views.Document` of its answer, and what draws one.

    draw/            print_document, write_page, markdown_of, fragment_of: faces of a document, for all studies
    prediction/      prediction_document(result); the JSON form of a Result, its trace, and words of its spec
    run_folder.py    save(result), load(path): folders named by content hash
    run_list.py      RunList(root): what folders there are: search, tags, delete
    comparison/      compare(a, b): where two results differ, and what explains it

Nothing here computes physics.
"""
