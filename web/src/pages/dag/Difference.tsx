/** The lines that differ between two texts. */
import { t } from '../../strings'
import { diff } from './diff'

export function Difference({ before, after }: { before: string; after: string }) {
  const found = diff(before, after)
  if (found.every((line) => line.kind === ' ')) return <div class="empty">{t.dag.sourceSame}</div>
  return (
    <>
      {found.map((line, at) => (
        <div key={at} class={line.kind === '+' ? 'added' : line.kind === '-' ? 'removed' : ''}>
          <span class="source-no">{line.before ?? ''}</span>
          <span class="source-no">{line.after ?? ''}</span>
          <span class="source-sign">{line.kind}</span>
          {line.text}
        </div>
      ))}
    </>
  )
}
